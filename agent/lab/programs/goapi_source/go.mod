module tickscope.lab/goapi

go 1.18

require golang.org/x/time v0.8.0
