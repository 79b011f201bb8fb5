// Package limits is the client of the Limits service: rate limiting over NATS request/reply.
//
// A [Client] asks a limiter worker whether something may happen. [Client.Consume] decides and charges,
// [Client.Check] only decides, [Client.Record] charges work that already happened, [Client.Refund] gives cost
// back, [Client.Status] shows the counters of a key. A denial is a normal [Reply] with Allowed false; an [*Error]
// says that the request was bad or that the service could not answer.
//
// The types of this package are the wire contract: requests and replies are their JSON, events are the JSON of
// [Warning] and [Exceeded] inside CloudEvents 1.0. Times are Unix milliseconds and durations are milliseconds;
// windows are text such as "1m" or "month".
//
// The package knows nats.go and nothing else of the service.
package limits
