"""The tables of the paper: their runs, our numbers beside the paper's, and the claims."""
