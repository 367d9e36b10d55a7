module example.com/limits

go 1.17

require golang.org/x/time v0.0.0-20190308202827-9d24e82272b4
