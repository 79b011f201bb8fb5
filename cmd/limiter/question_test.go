package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestASignalEndsTheWaitForInput from another process, which may never end.
func TestASignalEndsTheWaitForInput(t *testing.T) {
	for _, c := range []struct{ args, undone string }{
		{"consume --request -", "nothing was asked"},
		{"refund --request -", "nothing was asked"},
		{"verify", "no API key was verified"},
	} {
		in, typed := io.Pipe()
		ctx, interrupt := context.WithCancel(t.Context())
		i := &invocation{in: in, ctx: ctx}
		ended := i.begin(t, strings.Fields(c.args)...)
		_, _ = typed.Write([]byte("{")) // and it waits for more
		interrupt()
		<-ended
		i.want(t, exitError, "", "limiter: interrupted: "+c.undone+"\n")
		_ = typed.Close()
	}
}

// TestInterruptedQuestions: a signal during a question ends the verb, and the error says what was not done.
func TestInterruptedQuestions(t *testing.T) {
	url := testenv.NATS(t).ClientURL()
	respondAt(t, url, limits.SubjectReset, func(request string) *nats.Msg {
		if !strings.Contains(request, "dryRun") {
			t.Errorf("asked %s", request)
		}
		return text(`{"reset":12}`)("")
	})
	for _, c := range []struct{ args, question, undone string }{
		{"reset --prefix p:", "reset 12 counters under p:? [y/N] ", "nothing was reset"},
		{"reset --all", "reset 12 counters? [y/N] ", "nothing was reset"},
		{"alerts replay --all", "replay all dead letters of all channels? [y/N] ", "nothing was replayed"},
		{"verify", "API key: ", "no API key was verified"},
	} {
		t.Run(c.args, func(t *testing.T) {
			in, typed := io.Pipe()
			t.Cleanup(func() { _ = typed.Close() })
			ctx, interrupt := context.WithCancel(t.Context())
			i := &invocation{in: in, tty: true, ctx: ctx}
			ended := i.start(t, c.question, append(strings.Fields(c.args), "--nats-url", url)...)
			interrupt()
			<-ended
			i.want(t, exitError, "", c.question+"\nlimiter: interrupted: "+c.undone+"\n")
		})
	}
}
