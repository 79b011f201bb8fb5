package usage

import (
	"context"
	"time"
)

// Store keeps usage. Its times are Unix milliseconds. The conformance suite in package storetest
// defines its contract.
type Store interface {
	// AddUsage adds counts to the stored ones of the same minute, key, policy and user.
	AddUsage(ctx context.Context, counts []Count) error
	// AddRequests appends to the log of requests.
	AddRequests(ctx context.Context, requests []Request) error

	// TopUsage sums up counts, the highest first.
	TopUsage(ctx context.Context, q TopQuery) ([]Top, error)
	// Traffic returns the keys and users that made most of the logged requests.
	Traffic(ctx context.Context, q LogQuery) ([]Traffic, error)
	// SlowestEndpoints returns the endpoints that took longest, by their 95th percentile.
	SlowestEndpoints(ctx context.Context, q LogQuery) ([]Endpoint, error)
	// EndpointErrors returns the endpoints that most often answered with a status of 500 or above.
	EndpointErrors(ctx context.Context, q LogQuery) ([]Failure, error)

	// RollupUsage sums up to max of the oldest minutes that ended before the given time into hours.
	// PruneUsage and PruneRequests remove up to max of the oldest counts and logged requests from
	// before it. Each returns how many rows it took: fewer than max means that there are no more.
	RollupUsage(ctx context.Context, before time.Time, max int) (int, error)
	PruneUsage(ctx context.Context, before time.Time, max int) (int, error)
	PruneRequests(ctx context.Context, before time.Time, max int) (int, error)
}

// ID identifies whose usage is counted. The zero ID stands for all that had no room of their own.
type ID struct {
	Key, Policy, User string
}

// Count is what was decided for an ID in the minute that begins at At.
type Count struct {
	ID
	At int64
	// Allowed and Denied count decisions; Cost is what was charged, also by a record that was denied.
	Allowed, Denied, Cost int64
}

// Request is one entry of the request log.
type Request struct {
	At                          int64
	Key, User, Endpoint, Method string
	Status, Millis              int64
}

// The orders of a [TopQuery].
const (
	ByDenied  = "denied"
	ByUsed    = "used"
	ByAllowed = "allowed"
)

// TopQuery asks for the minutes that begin from Since until before Until. An hour of rolled-up minutes
// counts whole if the period begins or ends in it.
type TopQuery struct {
	// By is ByDenied, ByUsed (the cost) or ByAllowed. Rows in which it is 0 are left out.
	By           string
	Since, Until int64
	// Policy and User must match exactly, Prefix is the beginning of the key; empty matches all.
	Policy, User, Prefix string
	Max                  int
}

// Top is the usage of an ID in a period.
type Top struct {
	ID
	Allowed, Denied, Cost int64
	// Peak is the highest number of decisions in one minute.
	Peak int64
}

// LogQuery asks about the requests from Since until before Until whose key begins with Prefix.
type LogQuery struct {
	Since, Until int64
	Prefix       string
	Max          int
}

// Traffic is how many requests a key made for a user, and how many of them failed with a status of
// 500 or above.
type Traffic struct {
	Key, User        string
	Requests, Errors int64
}

// Endpoint is how long an endpoint took, in milliseconds.
type Endpoint struct {
	Endpoint, Method string
	Requests         int64
	Mean             float64
	P95, Max         int64
}

// Failure is how often an endpoint answered with a status.
type Failure struct {
	Endpoint, Method string
	Status, Requests int64
}
