package overrides

// Match is match.
var Match = match
