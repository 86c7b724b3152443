"""One turn of a slice, piece by piece: what there is to do, who may do it, sending, keeping."""
