package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

type alertsChannelsCmd struct{ clientFlags }

func (*alertsChannelsCmd) Help() string {
	return `A channel is disabled when its target says that it is gone; limiter alerts replay --channel C enables it. It is paused when
its target asks for that (Retry-After). BREAKER, a pause and an error are those of the process that answers.

Examples:

  limiter alerts channels
  limiter alerts channels --json | jq '.channels[] | select(.waiting > 0)'`
}

func (c *alertsChannelsCmd) Run(s *session) error {
	var reply limits.ChannelList
	if err := c.ask(s, limits.SubjectAlertsChannels, limits.ListChannelsRequest{}, &reply); err != nil || c.JSON {
		return err
	}
	t := newTable(s.out, "CHANNEL", "KIND", "HOST", "WAITING", "BREAKER", "STATE")
	for i, ch := range reply.Channels {
		t.row(ch.Name, ch.Kind, dash(ch.Host), ch.Waiting, dash(ch.Breaker), channelState(s, &reply.Channels[i]))
	}
	t.flush()
	return nil
}

// channelState describes the state of a channel, with the reason.
func channelState(s *session, ch *limits.AlertChannel) string {
	switch {
	case ch.DisabledAt != 0:
		return "disabled " + moment(s, ch.DisabledAt, "-") + ": " + ch.DisabledReason
	case ch.PausedUntil != 0:
		state := "paused until " + moment(s, ch.PausedUntil, "-") + " by its target"
		if ch.LastError != "" {
			state += ": " + ch.LastError
		}
		return state
	case ch.LastError != "":
		return "fails: " + ch.LastError
	}
	return "in use"
}

type alertsTestSendCmd struct {
	clientFlags
	Channel string        `arg:"" optional:"" help:"The channel; all unless given. See: limiter alerts channels."`
	Note    string        `placeholder:"TEXT" help:"A text for the message."`
	Wait    time.Duration `default:"10s" placeholder:"DURATION" help:"How long to wait for the end of the first try (${default})."`
}

func (*alertsTestSendCmd) Help() string {
	return `The test goes through the same outbox as alerts, and says that nothing is wrong. The exit status is 1 unless every channel
has taken it.

Examples:

  limiter alerts test-send
  limiter alerts test-send pager --note "after the move"`
}

func (c *alertsTestSendCmd) Validate() error {
	if c.Wait < 0 {
		return fmt.Errorf("--wait: %v is below 0; want 0 for no wait, or one such as 10s", c.Wait)
	}
	return c.clientFlags.Validate()
}

func (c *alertsTestSendCmd) Run(s *session) error {
	nc, err := c.connect(s, "alerts test-send")
	if err != nil {
		return err
	}
	defer nc.Close()
	var test limits.TestAlertReply
	raw, err := c.send(s, nc, limits.SubjectAlertsTest, limits.TestAlertRequest{Channel: c.Channel, Note: c.Note}, &test)
	if err != nil {
		if c.JSON && len(raw) > 0 {
			s.out.line(raw)
		}
		return err
	}
	details, err := c.await(s, nc, test.ID)
	switch {
	case details == nil:
	case c.JSON:
		err = errors.Join(err, printJSON(s, details))
	default:
		c.explainUntried(s, nc, details.Deliveries)
		printDeliveries(s, details.Deliveries)
	}
	if err != nil {
		return fmt.Errorf("test %s was sent: %w; see: limiter alerts show %[1]s", test.ID, err)
	}
	if failed := unsent(details.Deliveries); len(failed) > 0 {
		return fmt.Errorf("test %s: not delivered to %s; see: limiter alerts show %[1]s", test.ID, strings.Join(failed, ", "))
	}
	return nil
}

// await polls until every delivery was tried, or --wait is over. It returns the last details it got, also with an error.
func (c *alertsTestSendCmd) await(s *session, nc *nats.Conn, id string) (details *limits.AlertDetails, err error) {
	client := limits.NewClient(nc, limits.Timeout(c.Timeout))
	ctx, cancel := context.WithTimeout(s.ctx, c.Wait)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		latest, err := client.ShowAlert(s.ctx, id)
		if err == nil {
			details = latest
		}
		switch {
		case s.ctx.Err() != nil:
			return details, errInterrupted
		case err != nil || !untried(details.Deliveries):
			return details, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if s.ctx.Err() != nil {
				return details, errInterrupted
			}
			return details, nil
		}
	}
}

// explainUntried sets the error of deliveries that were not tried yet to the reason, if it is known: a channel that is
// paused, or whose last attempts failed, tries nothing for a while. The output of --json stays unchanged.
func (c *alertsTestSendCmd) explainUntried(s *session, nc *nats.Conn, all []limits.AlertDelivery) {
	if !untried(all) {
		return
	}
	known := map[string]string{}
	if reply, err := limits.NewClient(nc, limits.Timeout(c.Timeout)).ListChannels(s.ctx); err == nil { // this user may not be permitted to
		for i := range reply.Channels {
			if state := channelState(s, &reply.Channels[i]); state != "in use" {
				known[reply.Channels[i].Name] = ": channel " + state
			}
		}
	}
	for i := range all {
		if d := &all[i]; d.State == "waiting" && d.Error == "" {
			d.Error = "not tried yet" + known[d.Channel]
		}
	}
}

var errInterrupted = errors.New("interrupted before every channel was tried")

func untried(all []limits.AlertDelivery) bool {
	return slices.ContainsFunc(all, func(d limits.AlertDelivery) bool { return d.State == "waiting" && d.Error == "" })
}

func unsent(all []limits.AlertDelivery) (channels []string) {
	for i := range all {
		if all[i].State != "sent" {
			channels = append(channels, all[i].Channel)
		}
	}
	return channels
}

type alertsDeadCmd struct {
	clientFlags
	Channel string `placeholder:"C" help:"Only those of one channel."`
	After   string `empty:"" placeholder:"A" help:"Begin after the next of a page."`
	Max     int    `default:"50" placeholder:"N" help:"At most N deliveries, and N messages up to 50 (${default})."`
}

func (*alertsDeadCmd) Help() string {
	return `Lists deliveries that were given up, and messages of the stream LIMITS that are no valid events.

Examples:

  limiter alerts dead
  limiter alerts dead --channel pager
  limiter alerts dead --json | jq -r '.poison[] | .data | @base64d'`
}

func (c *alertsDeadCmd) Validate() error { return c.validateMax(c.Max, limits.MaxAlertPage) }

func (c *alertsDeadCmd) Run(s *session) error {
	var page limits.DeadLetters
	request := limits.DeadRequest{Channel: c.Channel, After: c.After, Max: c.Max}
	if err := c.ask(s, limits.SubjectAlertsDead, request, &page); err != nil || c.JSON {
		return err
	}
	if len(page.Deliveries) > 0 {
		printDeliveries(s, page.Deliveries)
	} else if c.After == "" || len(page.Poison) == 0 {
		fmt.Fprintln(s.out, "no dead letters")
		c.noteUnknown(s, "channel", c.Channel, channelNames)
	}
	if len(page.Poison) > 0 {
		fmt.Fprintln(s.out, "\nmessages that could not be processed:")
		t := newTable(s.out, "SEQUENCE", "SUBJECT", "AT", "REASON", "DATA")
		for i := range page.Poison {
			p := &page.Poison[i]
			t.row(p.Sequence, p.Subject, moment(s, p.At, "-"), p.Reason, fmt.Sprintf("%.60q", p.Data))
		}
		t.flush()
	}
	if page.Next != "" {
		fmt.Fprintf(s.out, "more: --after=%s\n", shellWord(page.Next))
	}
	return nil
}

type alertsReplayCmd struct {
	clientFlags
	ID      string `arg:"" optional:"" name:"id" help:"The id of a delivery; see: limiter alerts dead."`
	Channel string `placeholder:"C" help:"Replay all dead letters of a channel, and enable it."`
	All     bool   `help:"Replay all dead letters, and enable all channels."`
	Yes     bool   `short:"y" help:"Do not ask; needed for --all when standard input is not a terminal."`
}

func (*alertsReplayCmd) Help() string {
	return `Dead letters are due again at once. So is what waits for its next try in their channels, or in the one that --channel
names, unless a circuit breaker is open, then once it is not. A receiver that already got one can tell by its id.

Examples:

  limiter alerts replay JH6ZQK4SYGXAWSX3QYGDTFXKPL.raised/pager
  limiter alerts replay --channel pager
  limiter alerts replay --all --yes`
}

func (c *alertsReplayCmd) Validate() error {
	return cmp.Or(oneOf("ID, --channel and --all", c.ID != "", c.Channel != "", c.All), c.clientFlags.Validate())
}

func (c *alertsReplayCmd) Run(s *session) error {
	if c.All && !c.Yes {
		if err := c.confirm(s); err != nil {
			return err
		}
	}
	var reply limits.ReplayReply
	request := limits.ReplayRequest{ID: c.ID, Channel: c.Channel, All: c.All}
	if err := c.ask(s, limits.SubjectAlertsReplay, request, &reply); err != nil || c.JSON {
		return err
	}
	fmt.Fprintln(s.out, "replayed", count(reply.Replayed, "dead letter"))
	return nil
}

// confirm asks before everything is sent again.
func (c *alertsReplayCmd) confirm(s *session) error {
	if !s.inTTY {
		return usageError("replay all dead letters: cannot ask for confirmation, because standard input is not a terminal; pass --yes")
	}
	return s.confirm("replay all dead letters of all channels?", "nothing was replayed")
}
