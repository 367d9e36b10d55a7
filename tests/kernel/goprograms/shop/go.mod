module example.com/acme/shop

go 1.17

require golang.org/x/time v0.3.0
