// Package channel sends alerts to their targets: webhooks, Slack, mail servers and the log. Each is an [alerts.Channel] that
// makes one attempt; package deliver retries.
//
// Targets are not trusted. Every connection has deadlines, what is read of an answer is bounded, redirects are not followed,
// and private addresses are refused when the connection is made, whatever a name resolved to before. URLs are secrets:
// errors name only the host.
package channel
