"""The work of `holdfast monitor`: build, score and serve monitors."""
