// Package channel speaks with the targets of alerts: webhooks, Slack, mail servers and the log. Each is an
// [alerts.Channel] that tries once; who tries again, and when, is package deliver's to say.
//
// Targets are strangers. Every connection has deadlines, what is read of an answer is bounded, redirects are not followed,
// and addresses inside a network are refused when the connection is made, whatever a name resolved to before. URLs are
// secrets: errors name the host alone.
package channel
