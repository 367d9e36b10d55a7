module example.com/limits

go 1.17

require golang.org/x/time v0.0.0-20220210224613-90d013bbcef8
