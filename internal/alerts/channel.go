package alerts

import (
	"context"
	"time"
)

// Channel sends messages to one target. Send may be called concurrently.
type Channel interface {
	// Send makes one attempt. It returns nil once the target has accepted the message. After an error the caller retries
	// later, unless the error is a [*Refusal] that says otherwise.
	Send(ctx context.Context, m *Message) error
}

// Refusal is the error of a target that said how to go on.
type Refusal struct {
	Err error
	// RetryAfter is how long the target asks not to be sent anything; 0 if it does not say.
	RetryAfter time.Duration
	// Gone says that the target no longer exists. The channel is disabled.
	Gone bool
	// Final says that a retry would not help.
	Final bool
}

func (r *Refusal) Error() string { return r.Err.Error() }

// Unwrap returns Err.
func (r *Refusal) Unwrap() error { return r.Err }
