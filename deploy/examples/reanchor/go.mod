module reanchor

go 1.19
