module example.com/limits

go 1.17

require golang.org/x/time v0.0.0-20180412165947-fbb02b2291d2
