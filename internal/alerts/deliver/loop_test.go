package deliver

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

type refusing struct{}

func (refusing) Send(context.Context, *alerts.Message) error { return errors.New("refused") }

// TestCircuitOpeningDoesNotDeadlock: the breaker calls OnStateChange under its own lock, which
// takes the loop's.
func TestCircuitOpeningDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	s, err := NewSender(Config{
		Outbox: struct{ Outbox }{}, Logger: slog.New(slog.DiscardHandler), Channels: func() []Named { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		l := newLoop(s, Named{Name: "a", Target: "x", Channel: refusing{}})
		opened, looked := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(opened)
			for range breakAfter {
				ch, breaker := l.current()
				l.send(context.Background(), &attempt{target: ch.Target}, ch.Channel, breaker)
			}
		}()
		go func() {
			defer close(looked)
			for l.room() > 0 {
			}
		}()
		for _, done := range []<-chan struct{}{opened, looked} {
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("the loop and its circuit wait for each other")
			}
		}
	}
}
