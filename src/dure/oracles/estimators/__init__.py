"""scikit-learn estimators as models: exact local solutions where there are some, else epochs of `partial_fit`."""
