"""Estimators of scikit-learn, XGBoost and LightGBM, read and asked; none of these libraries is needed to import this one."""

from holdfast.network.estimators.opening import Opened, open_estimator

__all__ = ["Opened", "open_estimator"]
