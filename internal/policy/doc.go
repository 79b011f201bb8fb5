// Package policy reads the policy file and tells which limits a request has.
//
// A file is read strictly and as a whole: [Parse] gives a [Set], or an error that lists every mistake with its line,
// its path and the way out. A Set is never changed. A [Keeper] holds the one in force and puts another in its place
// when the file changes, so that no request sees half of one.
//
// The package knows the limits of the engine and nothing of stores, NATS or HTTP.
package policy
