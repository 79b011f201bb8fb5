// Package limits is the Go client of the Limits service: rate limiting over NATS request/reply.
//
// A [Client] asks a limiter worker for decisions:
//
//   - [Client.Consume] decides and, if the request is allowed, charges it, in one atomic step.
//   - [Client.Check] decides and charges nothing.
//   - [Client.Record] charges work that already happened, even past the limit.
//   - [Client.Refund] gives cost back. [Client.Settle] replaces the cost of an earlier Consume.
//   - [Client.Wait] consumes, and retries until the request is allowed.
//   - [Client.VerifyKey] verifies an API key and charges the limits of its user.
//   - [Client.Status] shows the counters of a key.
//
// A denial is a normal [Reply] with Allowed false, not an error. An [*Error] means that the request was bad or that
// the service could not answer it.
//
// The types of this package are the wire contract: requests and replies in their JSON form, and events, whose data
// ([Warning], [Exceeded], ...) is carried in CloudEvents 1.0. Unless a field says otherwise, times are Unix
// milliseconds and durations are milliseconds. Windows are text, such as "1m" or "month".
//
// Connect to NATS with [Reconnect], which keeps the connection alive through outages:
//
//	nc, err := nats.Connect(url, limits.Reconnect())
//	...
//	client := limits.NewClient(nc)
//	reply, err := client.Consume(ctx, limits.Per("api:user:123", 100, "1m"))
//
// The package depends on nats.go and on no other package of the service.
package limits
