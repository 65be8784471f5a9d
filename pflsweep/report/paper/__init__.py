"""A paper's table made anew from records: laid out by a file of data, beside the numbers that were printed."""
