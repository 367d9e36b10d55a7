module example.com/goqueues

go 1.18
