package alerts

import (
	"context"
	"time"
)

// Channel sends messages to one target. Several may be sent at the same time.
type Channel interface {
	// Send returns nil once the target has taken the message. An error is tried again later; a [*Refusal] says more of it.
	Send(ctx context.Context, m *Message) error
}

// Refusal is an error with which a target tells what to do.
type Refusal struct {
	Err error
	// RetryAfter is how long the target wants to be left alone; 0 when it does not say.
	RetryAfter time.Duration
	// Gone says that the target is no more: the channel is disabled.
	Gone bool
	// Final says that trying again does not help.
	Final bool
}

func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap gives what went wrong.
func (r *Refusal) Unwrap() error { return r.Err }
