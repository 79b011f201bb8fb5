package alerts

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
)

const (
	// digestUsers is how many users are looked up at a time.
	digestUsers = 500
	// digestAlerts is the most that one digest tells of unless said; another follows at once with the rest.
	digestAlerts = 10_000
	// digestKeys and digestPolicies are how many keys and policies a digest names: events can have any, and a message of
	// all could be more than a channel takes.
	digestKeys     = 10
	digestPolicies = 100
)

// Digest tells each user's held alerts, in one message to a channel. It is a job, which runs every hour.
func (s *Service) Digest(ctx context.Context) (note string, err error) {
	digests, alerts, after := 0, 0, ""
	for {
		users, err := s.Store.HeldUsers(ctx, after, digestUsers)
		if err != nil {
			return digestNote(digests, alerts), err
		}
		silences, err := s.Store.Silences(ctx, false, 2*limits.MaxSilences)
		if err != nil {
			return digestNote(digests, alerts), err
		}
		for _, user := range users {
			d, n, err := s.digestsOf(ctx, user, silences)
			digests, alerts, after = digests+d, alerts+n, user
			if err != nil {
				return digestNote(digests, alerts), err
			}
		}
		if len(users) < digestUsers {
			return digestNote(digests, alerts), nil
		}
	}
}

// digestsOf tells all that is held of a user and may be told now. What is held meanwhile waits for the next run, and so does
// what somebody else has locked: else a user could be sent a digest for each.
func (s *Service) digestsOf(ctx context.Context, user string, silences []Silence) (digests, alerts int, err error) {
	began := int64(0) // by the store's clock
	for more := true; more; {
		var made Digested
		n, err := s.Store.DigestAlerts(ctx, user, s.DigestMax, func(held []Alert, now int64) (_ Digested, err error) {
			began = cmp.Or(began, now)
			made, err = s.digest(user, held, began, now, silences)
			return made, err
		})
		if err != nil {
			return digests, alerts, err
		}
		if made.Name != "" {
			digests, alerts = digests+1, alerts+n-len(made.Later)
			s.Delivered()
		}
		more = n == s.DigestMax
	}
	return digests, alerts, nil
}

func digestNote(digests, alerts int) string {
	return fmt.Sprintf("%d digests of %d alerts", digests, alerts)
}

// digest makes the digest of a user: each channel is told of the alerts that it would have been sent, and of no others. What may
// not be told now, or was held since the run began, waits for the next.
func (s *Service) digest(user string, held []Alert, began, now int64, silences []Silence) (Digested, error) {
	rules, at := s.Rules(), time.UnixMilli(now+DigestLead)
	later, next := rules.later(held, at, silences), nextHour(at).UnixMilli()
	for i := range held {
		// What was held after now was held while the clock was ahead.
		if since := held[i].NoticeAt; since > began && since <= now && later[held[i].ID] == 0 {
			later[held[i].ID] = next
		}
	}
	var told []*Alert
	for i := range held {
		if later[held[i].ID] == 0 {
			told = append(told, &held[i])
		}
	}
	if len(told) == 0 {
		return Digested{Later: later}, nil
	}
	made := Digested{Name: s.NewID(), Later: later}
	for i, a := range rules.audiences(told) {
		m, err := digestMessage(made.Name, user, a.told)
		if err != nil {
			return Digested{}, err
		}
		m.Time = now
		if i > 0 { // who has several channels can tell it from the others
			m.ID += fmt.Sprint("-", i+1)
		}
		made.Deliveries = append(made.Deliveries, deliveries(m, a.channels)...)
	}
	return made, nil
}

func digestMessage(id, user string, told []*Alert) (Message, error) {
	d := gather(id, user, told)
	m := Message{ID: id + ".digest", Kind: KindDigest, User: user, Severity: Severity(d.Severity),
		Title: fmt.Sprintf("%s held back for %s", counted(d.Alerts, "alert"), cmp.Or(user, "limits of no user")), Text: digestText(&d)}
	d.Policies = d.Policies[:min(len(d.Policies), digestPolicies)]
	return m.with(d)
}

// later gives those that a digest at a time leaves out, each with up to when.
func (r *Rules) later(held []Alert, at time.Time, silences []Silence) map[string]int64 {
	all, quiet := map[string]int64{}, map[string]int64{}
	for i := range held {
		a := &held[i]
		until, known := quiet[a.Rule]
		if !known {
			if end, no := r.find(a.Rule).noDigest(at); no {
				until = heldUntil(end, at)
			}
			quiet[a.Rule] = until
		}
		switch {
		case until > 0:
			all[a.ID] = until
		case slices.ContainsFunc(silences, func(s Silence) bool { return s.ExpiresAt > at.UnixMilli() && s.fits(a) }):
			all[a.ID] = nextHour(at).UnixMilli()
		}
	}
	return all
}

// heldUntil is when an alert is looked at again that is to be held until a time: by the next digest, because a silence may be
// ended early, and another alerts file may have other quiet hours.
func heldUntil(until, at time.Time) int64 {
	if next := nextHour(at); next.Before(until) {
		until = next
	}
	return until.UnixMilli()
}

func gather(id, user string, held []*Alert) limits.AlertDigest {
	d := limits.AlertDigest{Digest: id, User: user, Severity: string(worst(held))}
	policies, keys := map[string]limits.DigestCount{}, map[string]limits.DigestCount{}
	for _, a := range held {
		d.Alerts++
		denied := a.denials()
		d.Denied += denied
		if d.FirstAt == 0 || a.FirstAt < d.FirstAt {
			d.FirstAt = a.FirstAt
		}
		d.LastAt = max(d.LastAt, a.LastAt)
		tally(policies, a.Policy, denied)
		tally(keys, a.Key, denied)
	}
	d.Policies = ordered(policies, func(c limits.DigestCount) int64 { return c.Alerts })
	d.Keys = ordered(keys, func(c limits.DigestCount) int64 { return c.Denied })
	d.Keys = d.Keys[:min(len(d.Keys), digestKeys)]
	return d
}

func tally(counts map[string]limits.DigestCount, name string, denied int64) {
	c := counts[name]
	c.Name = name
	c.Alerts++
	c.Denied += denied
	counts[name] = c
}

func ordered(counts map[string]limits.DigestCount, by func(limits.DigestCount) int64) []limits.DigestCount {
	return slices.SortedFunc(maps.Values(counts), func(a, b limits.DigestCount) int {
		return cmp.Or(cmp.Compare(by(b), by(a)), strings.Compare(a.Name, b.Name))
	})
}

// worst gives the greatest severity.
func worst(held []*Alert) Severity {
	most := 0
	for _, a := range held {
		most = max(most, slices.Index(severities(), a.Severity))
	}
	return severities()[most]
}

// audience is channels that are told of the same alerts.
type audience struct {
	channels []string
	told     []*Alert
}

// audiences gives each channel once, with the alerts that it would have been told of.
func (r *Rules) audiences(told []*Alert) (all []audience) {
	of := map[string][]*Alert{}
	for _, a := range told {
		for _, c := range r.reached(a) {
			of[c] = append(of[c], a)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(of)) {
		i := slices.IndexFunc(all, func(a audience) bool { return slices.Equal(a.told, of[c]) })
		if i < 0 {
			i, all = len(all), append(all, audience{told: of[c]})
		}
		all[i].channels = append(all[i].channels, c)
	}
	return all
}

// digestText says a digest in words.
func digestText(d *limits.AlertDigest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s with %s between %s and %s.", counted(d.Alerts, "alert"), denials(d.Denied), stamp(d.FirstAt), stamp(d.LastAt))
	for i, p := range d.Policies {
		if i == digestKeys {
			fmt.Fprintf(&b, "\n… and %d more policies", len(d.Policies)-i)
			break
		}
		fmt.Fprintf(&b, "\npolicy %s: %s, %s", cmp.Or(p.Name, "(inline)"), counted(p.Alerts, "alert"), denials(p.Denied))
	}
	for _, k := range d.Keys {
		fmt.Fprintf(&b, "\nkey %s: ", k.Name)
		if k.Denied == 0 {
			fmt.Fprintf(&b, "%s, ", counted(k.Alerts, "alert"))
		}
		b.WriteString(denials(k.Denied))
	}
	return b.String()
}

// denials counts them; those that were only warned of have none.
func denials(n int64) string {
	if n == 0 {
		return "no denial"
	}
	return counted(n, "denial")
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
