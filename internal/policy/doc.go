// Package policy reads the policy file and resolves requests to the limits that apply to them.
//
// A file is read strictly and as a whole: [Parse] returns a [Set], or an error that lists every mistake with its line,
// its path and how to correct it. A Set is immutable. A [Keeper] holds the Set in force and replaces it when the file
// changes, so that no request sees a mixture of two files.
//
// All tiers and schedule entries of a policy are worked out when the file is read. A request only has to match its
// attributes and to render its keys.
//
// The package knows the limits of the engine, and nothing of stores, NATS or HTTP.
package policy
