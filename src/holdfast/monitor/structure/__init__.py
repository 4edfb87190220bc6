"""Check by tracing that a module is a recurrent layer between an element-wise front and head."""
