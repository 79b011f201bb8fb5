package main

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/testenv"
)

// TestNoAnswerSaysWhatMayHaveBeenDone: the limiter may carry out a request whose answer is lost.
func TestNoAnswerSaysWhatMayHaveBeenDone(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).ClientURL()
	asked := make(chan struct{}, 2)
	nc := testenv.Connect(t, url)
	if _, err := nc.Subscribe("limits.>", func(*nats.Msg) { asked <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	const charged, done = "; it may have been charged; with an id it can be sent again safely", "; it may have been carried out"
	for verb, may := range map[string]string{
		"consume k --limit 1 --window 1m": charged,
		"record k --limit 1 --window 1m":  charged,
		"refund k --limit 1 --window 1m":  "; it may have been given back; with an id it can be sent again safely",
		"settle job --cost 1":             done,
		"reset k":                         done,
		"reset k --dry-run":               "",
		"check k --limit 1 --window 1m":   "",
		"show k":                          "",
		"keys list":                       "",
		"keys revoke 4fJq01Zx":            done,
		"alerts test-send":                done,
		"jobs run expire":                 done,
		"keys create --user 7": "; a key that nobody has may have been created: see limiter keys list --user=\"7\"," +
			" and revoke it with: limiter keys revoke ID",
	} {
		t.Run(verb, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			i := &invocation{ctx: ctx}
			ended := i.begin(t, append(strings.Fields(verb), "--timeout", "1h", "--nats-url", url)...)
			<-asked
			interrupt()
			<-ended
			i.want(t, exitError, "", ": interrupted before the answer"+may+"\n")
		})
	}
	for verb, may := range map[string]string{"show k": "", "consume k --limit 1 --window 1m": charged} {
		i := limiter(t, append(strings.Fields(verb), "--timeout", "1s", "--nats-url", url)...)
		i.want(t, exitError, "", ": no answer: context deadline exceeded; waited 1s (--timeout)"+may+"\n")
	}
}
