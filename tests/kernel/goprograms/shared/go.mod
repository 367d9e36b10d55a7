module example.com/shared

go 1.19

require golang.org/x/time v0.3.0
