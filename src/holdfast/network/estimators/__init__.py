"""Estimators of scikit-learn, XGBoost and LightGBM, read and asked; none of these libraries is needed to import this one."""

from holdfast.network.estimators.opening import OpenedEstimator, open_estimator

__all__ = ["OpenedEstimator", "open_estimator"]
