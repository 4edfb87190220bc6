"""Networks of 224 x 224 pixels: changed pixels, saliency maps, risk over a feature, first upper bounds."""
