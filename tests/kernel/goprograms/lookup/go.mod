module lookup

go 1.19
