"""Tables and figures of the papers that the field compares itself with, on data at hand."""
