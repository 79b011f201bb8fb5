package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/seed503877ad/limits"
)

var algorithms = []string{limits.SlidingWindow, limits.FixedWindow, limits.TokenBucket}

var consistencies = []string{limits.Exact, limits.Leased}

// decideFlags are the flags of consume, check, record and refund. They make a request.
type decideFlags struct {
	clientFlags
	policyFlags
	Key         string `arg:"" optional:"" help:"What is limited, such as api:user:123."`
	Limit       *int64 `placeholder:"N" help:"How much may be charged in one window."`
	Window      string `placeholder:"W" help:"A duration such as 500ms, 1m, 1h, 1d, or minute, hour, day, week, month."`
	Cost        *int64 `placeholder:"N" help:"What this request costs (1)."`
	Algorithm   string `placeholder:"NAME" help:"sliding_window (the default), fixed_window or token_bucket."`
	Burst       *int64 `placeholder:"N" help:"Tokens on top of the limit (token_bucket)."`
	Name        string `placeholder:"NAME" help:"Tells the counters of one key apart; the window unless set."`
	Timezone    string `placeholder:"ZONE" help:"Zone of a calendar window, such as Europe/Berlin; UTC unless set."`
	Anchor      string `placeholder:"ANCHOR" help:"aligned, or first_use: a fixed window starts at its first charge."`
	Consistency string `placeholder:"WORD" help:"exact (the default), or leased: a worker may charge a little ahead."`
	ID          string `name:"id" placeholder:"ID" help:"The same id charges once."`
	Request     string `placeholder:"JSON" help:"The whole request as JSON, instead of KEY and all other flags of the request; - reads standard input."`
}

func (f *decideFlags) Validate() error {
	if err := f.checkForm(); err != nil {
		return err
	}
	switch {
	case f.Limit != nil && *f.Limit < 1: // in the request 0 would mean that it is missing
		return fmt.Errorf("--limit: %d is below 1; want one such as 100", *f.Limit)
	case f.Algorithm != "" && !slices.Contains(algorithms, f.Algorithm):
		return fmt.Errorf("--algorithm: %q is not one of %s", f.Algorithm, strings.Join(algorithms, ", "))
	case f.Consistency != "" && !slices.Contains(consistencies, f.Consistency):
		return fmt.Errorf("--consistency: %q is not one of %s", f.Consistency, strings.Join(consistencies, ", "))
	case f.Cost != nil && *f.Cost < 1:
		return fmt.Errorf("--cost: %d is below 1", *f.Cost)
	}
	return f.clientFlags.Validate()
}

// checkForm checks that the request has exactly one form: a limit, a policy, or JSON.
func (f *decideFlags) checkForm() error {
	inline := f.request().LimitSpec != limits.LimitSpec{} || f.Limit != nil || f.Burst != nil
	switch {
	case f.Request != "" && (inline || f.given() || f.Cost != nil || f.ID != ""):
		return errors.New("--request is the whole request: leave out KEY, the limit and policy flags, --cost and --id, and put their values in the JSON")
	case f.Request != "":
		return nil
	case f.given() && inline:
		return errors.New("--policy, --tier and -a replace KEY and the limit flags; leave those out, the policy defines them")
	case f.given() && f.Policy == "" && len(f.Attributes) == 0:
		return errors.New("--tier requires --policy or -a")
	case !f.given() && (f.Key == "" || f.Limit == nil || f.Window == ""):
		return errors.New("KEY, --limit (1 or more) and --window are required, or --policy or -a, or --request")
	}
	return nil
}

// body returns the request's JSON: as given, or made of the flags.
func (f *decideFlags) body(s *session) ([]byte, error) {
	switch f.Request {
	case "":
		return json.Marshal(f.request())
	case "-":
		// One byte more than the limit is enough to see that it is too large.
		return await(s, "nothing was asked", func() ([]byte, error) {
			body, err := io.ReadAll(io.LimitReader(s.in, limits.MaxRequestBytes+1))
			if err != nil {
				return nil, fmt.Errorf("read request: %w", err)
			}
			if len(body) > limits.MaxRequestBytes {
				return nil, &limits.Error{Status: 413, Code: limits.CodeTooLarge, Message: fmt.Sprintf(
					"the request on standard input has more than %d bytes; at most %[1]d are allowed", limits.MaxRequestBytes)}
			}
			return body, nil
		})
	}
	return []byte(f.Request), nil
}

func (f *decideFlags) request() limits.Request {
	r := limits.Request{ID: f.ID}
	r.Key, r.Window, r.Algorithm, r.Name = f.Key, f.Window, f.Algorithm, f.Name
	r.Timezone, r.Anchor, r.Consistency = f.Timezone, f.Anchor, f.Consistency
	r.Policy, r.Tier, r.Attributes = f.Policy, f.Tier, f.Attributes
	r.Limit, r.Burst, r.Cost = orZero(f.Limit), orZero(f.Burst), orZero(f.Cost)
	return r
}

// orZero returns the number of a flag, or 0 if it was not given.
func orZero(given *int64) int64 {
	if given == nil {
		return 0
	}
	return *given
}

// decide sends the request and prints the decision. It returns errDenied for a denial.
func (f *decideFlags) decide(s *session, subject string) error {
	body, err := f.body(s)
	if err != nil {
		return err
	}
	var reply limits.Reply
	if err := f.ask(s, subject, body, &reply); err != nil {
		return err
	}
	if !f.JSON {
		printDecision(s, subject, &reply, windowOf(body))
	}
	if !reply.Allowed {
		return errDenied
	}
	return nil
}

// windowOf returns the window of a request with one limit. It ignores mistakes, which the service reports.
func windowOf(body []byte) string {
	var r limits.Request
	_ = json.Unmarshal(body, &r)
	if len(r.Limits) == 1 {
		return r.Limits[0].Window
	}
	return r.Window
}

// printDecision prints the verdict and a table of the limits. window is the window of a request with one limit, if it is
// known.
func printDecision(s *session, subject string, r *limits.Reply, window string) {
	w := wordingOf(subject)
	fmt.Fprintln(s.out, w.verdict(r))
	rows := r.Limits
	if len(rows) == 0 && r.Key != "" {
		rows = []limits.LimitReply{{
			Key: r.Key, Name: r.Name, Limit: r.Limit, Window: window,
			Remaining: r.Remaining, Reset: r.Reset, Allowed: r.Allowed, RetryAfter: r.RetryAfter,
		}}
	}
	if len(rows) == 0 {
		return
	}
	t := newTable(s.out, "KEY", "NAME", "LIMIT", "REMAINING", "RESET", "RESULT")
	for _, l := range rows {
		t.row(l.Key, l.Name, rate(l.Limit, l.Window, 0), l.Remaining, when(s.now(), l.Reset), w.result(&l))
	}
	t.flush()
}

// wording is how a verb's answer is put into words.
type wording struct {
	// done is what was done when everything fitted, fits what that is for one limit, and shadow what a limit would have done
	// if it were enforced.
	done, fits, shadow string
	// asks says that the caller asked whether it may go on. The other verbs are about work that has begun.
	asks bool
}

func wordingOf(subject string) wording {
	const past = "past a limit that is not enforced"
	switch subject {
	case limits.SubjectRecord:
		return wording{done: "recorded", fits: "fits", shadow: past}
	case limits.SubjectSettle:
		return wording{done: "settled", fits: "fits", shadow: past}
	case limits.SubjectRefund:
		return wording{done: "refunded", fits: "refunded", shadow: past}
	}
	return wording{done: "allowed", fits: "allowed", shadow: "a denial that is not enforced", asks: true}
}

func (w *wording) verdict(r *limits.Reply) string {
	text := w.done
	switch {
	case !r.Allowed && !w.asks: // if it were called a denial, people would try again and charge twice
		text = "past the limit: " + strings.TrimSuffix(r.Message, "; recorded past the limit")
	case !r.Allowed:
		text = "denied: " + cmp.Or(r.Message, "by "+r.BlockedBy)
	case r.Shadow:
		text += " (shadow: " + cmp.Or(r.Message, w.shadow) + ")"
	case r.Unlimited() && !w.asks:
		text = "nothing " + w.done + ": no limit applies"
	case r.Unlimited():
		text += ": no limit applies"
	}
	if r.Degraded {
		text += " (degraded: answered without the store)"
	}
	return text
}

func (w *wording) result(l *limits.LimitReply) string {
	text := "denied, can never fit"
	switch {
	case l.Allowed:
		return w.fits
	case !w.asks:
		text = "charged, past the limit"
	case l.RetryAfter > 0:
		text = "denied, retry in " + waitTime(l.RetryAfter)
	}
	if l.Shadow {
		text += " (shadow)" // it denies nothing
	}
	return text
}

type consumeCmd struct{ decideFlags }

func (*consumeCmd) Help() string {
	return `Examples:

  limiter consume api:user:123 --limit 100 --window 1m
  limiter consume api:user:123 --limit 100 --window 1m --cost 5 --id order-17
  limiter consume jobs:acme --limit 50 --window day --timezone Europe/Berlin
  limiter consume api:burst --limit 100 --window 1m --algorithm token_bucket --burst 20
  limiter consume --policy signup -a ip=203.0.113.9 -a email=a@b.example
  limiter consume -a user=7 -a route=chat --tier PRO      # every policy that matches
  limiter consume --request '{"limits":[{"key":"global","limit":1000,"window":"1m"},{"key":"ip:ab12","limit":5,"window":"1m"}]}'
  limiter consume --request - < request.json

The exit status is 0 when it is allowed and 3 when it is denied.`
}

func (c *consumeCmd) Run(s *session) error { return c.decide(s, limits.SubjectConsume) }

type checkCmd struct{ decideFlags }

func (*checkCmd) Help() string {
	return `Examples:

  limiter check api:user:123 --limit 100 --window 1m
  limiter check api:user:123 --limit 100 --window 1m --cost 20 && ./import.sh
  limiter check -a user=7 -a route=chat

The exit status is 0 when it would be allowed and 3 when it would be denied.`
}

func (c *checkCmd) Run(s *session) error { return c.decide(s, limits.SubjectCheck) }

type recordCmd struct{ decideFlags }

func (*recordCmd) Help() string {
	return `Examples:

  limiter record jobs:acme --limit 50 --window day --cost 3
  limiter record --policy chat -a user=7 --cost 3

The cost is charged in any case. The exit status is 0 when it fitted and 3 when it went past the limit.`
}

func (c *recordCmd) Run(s *session) error { return c.decide(s, limits.SubjectRecord) }

type refundCmd struct{ decideFlags }

func (*refundCmd) Help() string {
	return `Examples:

  limiter refund jobs:acme --limit 50 --window day --cost 3
  limiter refund --policy chat -a user=7 --cost 3`
}

func (c *refundCmd) Run(s *session) error { return c.decide(s, limits.SubjectRefund) }
