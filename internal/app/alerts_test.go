package app

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/alerts/channel"
	"github.com/seed503877ad/limits/internal/testenv"
)

// TestBrokenChannelFailsEveryAttempt until the file is corrected, instead of being taken for a removed one.
func TestBrokenChannelFailsEveryAttempt(t *testing.T) {
	t.Parallel()
	maker, err := channel.NewMaker(channel.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer maker.Close()
	rules := func(secrets ...[]byte) *alerts.Rules {
		return &alerts.Rules{Channels: []alerts.ChannelSpec{
			{Name: "log", Kind: alerts.ChannelLog},
			{Name: "ops", Kind: alerts.ChannelWebhook, Webhook: &alerts.WebhookSpec{URL: "https://ops.example/hook", Secrets: secrets}},
		}}
	}
	now := rules()
	var lines strings.Builder
	c := &channels{rules: func() *alerts.Rules { return now }, make: maker.Make,
		log: slog.New(slog.NewTextHandler(&lines, nil))}
	for range 2 {
		all := c.named()
		if len(all) != 2 || all[1].Name != "ops" || all[1].Target == "" {
			t.Fatalf("in force: %+v", all)
		}
		err = all[1].Channel.Send(t.Context(), &alerts.Message{})
		if err == nil || !strings.Contains(err.Error(), "cannot set up") || !strings.Contains(err.Error(), "secrets") {
			t.Errorf("the reason is missing: %v", err)
		}
		if _, refused := errors.AsType[*alerts.Refusal](err); refused {
			t.Error("it is not tried again")
		}
	}
	if logged := strings.Count(lines.String(), "cannot set up"); logged != 1 {
		t.Errorf("logged %d times, want once for a file", logged)
	}
	now = rules([]byte("0123456789abcdef01234567"))
	if _, still := c.named()[1].Channel.(brokenChannel); still {
		t.Error("it still fails once the file is mended")
	}
}

// TestMiscountingRuleIsLogged once for each file. A threshold of one denial cannot be counted wrongly.
func TestMiscountingRuleIsLogged(t *testing.T) {
	t.Parallel()
	match := alerts.Match{Types: []string{limits.EventExceeded}}
	rules := &alerts.Rules{Rules: []alerts.Rule{
		{Name: "short", Match: match, Threshold: 3, Within: 5 * time.Second},
		{Name: "single", Match: match, Threshold: 1, Within: 5 * time.Second},
		{Name: "warnings", Match: alerts.Match{Types: []string{limits.EventWarning}}, Threshold: 3, Within: 5 * time.Second},
		{Name: "long", Match: match, Threshold: 3, Within: 10 * time.Second},
	}}
	var lines strings.Builder
	c := &channels{rules: func() *alerts.Rules { return rules }, log: slog.New(slog.NewTextHandler(&lines, nil))}
	for range 2 {
		c.named()
	}
	if said := lines.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, `level=WARN msg="alert rule counts wrongly" rule=short`) {
		t.Errorf("the log says\n%s", said)
	}
}

// TestForbiddenChannelTargetIsLogged once for each file, before the first alert shows it.
func TestForbiddenChannelTargetIsLogged(t *testing.T) {
	t.Parallel()
	rules := &alerts.Rules{Channels: []alerts.ChannelSpec{
		{Name: "log", Kind: alerts.ChannelLog},
		{Name: "ops", Kind: alerts.ChannelSlack, Slack: &alerts.SlackSpec{URL: "http://10.0.0.1/secret"}},
	}}
	var lines strings.Builder
	c := &channels{
		rules: func() *alerts.Rules { return rules },
		make:  func(*alerts.ChannelSpec) (alerts.Channel, error) { return brokenChannel{}, nil },
		log:   slog.New(slog.NewTextHandler(&lines, nil)),
	}
	for range 2 {
		c.named()
	}
	said := lines.String()
	if strings.Count(said, "\n") != 1 || !strings.Contains(said, `level=WARN msg="alert channel cannot work" channel=ops`) ||
		!strings.Contains(said, "10.0.0.1 is not a public internet address") || strings.Contains(said, "secret") {
		t.Errorf("the log says\n%s", said)
	}
}

// TestAlertsStreamExistsBeforeFirstAlert, so that readers can create a consumer.
func TestAlertsStreamExistsBeforeFirstAlert(t *testing.T) {
	t.Parallel()
	nc := running(t, Run, options(t)).connect(t)
	js := testenv.JetStream(t, nc)
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		_, err := js.Stream(t.Context(), limits.AlertStream)
		if err == nil {
			return
		}
		if !errors.Is(err, jetstream.ErrStreamNotFound) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
