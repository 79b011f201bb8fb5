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
	// digestAlerts is the default of Config.DigestMax. If a user has more, another digest follows at once.
	digestAlerts = 10_000
	// digestKeys and digestPolicies are how many keys and policies a digest names at most: with all of them a message could
	// be larger than a channel accepts.
	digestKeys     = 10
	digestPolicies = 100
	// digestFailures is after how many users in a row whose digest failed a run ends: then the store fails, and not what
	// it has of one user. Users whose alerts are locked do not count.
	digestFailures = 3
)

// Digest is a job that runs every hour. It sends each user's held alerts, in one message per channel. A user whose digest
// fails does not keep the others from theirs.
func (s *Service) Digest(ctx context.Context) (note string, err error) {
	digests, alerts, after := 0, 0, ""
	var failure error
	for inRow := 0; ; {
		users, err := s.Store.HeldUsers(ctx, after, digestUsers)
		if err != nil {
			return digestNote(digests, alerts), err
		}
		silences, err := s.Store.Silences(ctx, false, 2*limits.MaxSilences)
		if err != nil {
			return digestNote(digests, alerts), err
		}
		for _, user := range users {
			d, n, err := s.digestUser(ctx, user, silences)
			digests, alerts, after = digests+d, alerts+n, user
			if err == nil {
				inRow = 0
				continue
			}
			if failure == nil {
				failure = fmt.Errorf("digest of user %q: %w", user, err)
			}
			if !s.Locked(err) {
				inRow++
			}
			if inRow == digestFailures || ctx.Err() != nil {
				return digestNote(digests, alerts), failure
			}
		}
		if len(users) < digestUsers {
			return digestNote(digests, alerts), failure
		}
	}
}

// digestUser sends all of a user's held alerts that may be sent now. Alerts that are held meanwhile wait for the next run:
// otherwise a user could be sent a digest for each.
func (s *Service) digestUser(ctx context.Context, user string, silences []Silence) (digests, alerts int, err error) {
	began := int64(0) // by the store's clock
	for more := true; more; {
		var made DigestDecision
		n, err := s.Store.DigestAlerts(ctx, user, s.DigestMax, func(held []Alert, now int64) (_ DigestDecision, err error) {
			began = cmp.Or(began, now)
			made, err = s.digest(user, held, began, now, silences)
			return made, err
		})
		if err != nil {
			return digests, alerts, err
		}
		if made.Name != "" {
			digests, alerts = digests+1, alerts+n-len(made.Postponed)
			s.Delivered()
		}
		more = n == s.DigestMax
	}
	return digests, alerts, nil
}

func digestNote(digests, alerts int) string {
	return fmt.Sprintf("%d digests of %d alerts", digests, alerts)
}

// digest makes the digest of a user. Each channel gets the alerts that would have been sent to it, and no others. Alerts
// that may not be sent now, or that were held after the run began, wait for a later run.
func (s *Service) digest(user string, held []Alert, began, now int64, silences []Silence) (DigestDecision, error) {
	rules, at := s.Rules(), time.UnixMilli(now)
	postponed, next := rules.postponed(held, at, silences), nextHour(at.Add(DigestLead)).UnixMilli()
	for i := range held {
		// NoticeAt after now means that the clock was ahead when the alert was held; it is not postponed.
		if since := held[i].NoticeAt; since > began && since <= now && postponed[held[i].ID] == 0 {
			postponed[held[i].ID] = next
		}
	}
	var included []*Alert
	for i := range held {
		if postponed[held[i].ID] == 0 {
			included = append(included, &held[i])
		}
	}
	if len(included) == 0 {
		return DigestDecision{Postponed: postponed}, nil
	}
	made := DigestDecision{Name: s.NewID(), Postponed: postponed}
	for i, r := range rules.recipients(included) {
		m, err := rules.digestMessage(made.Name, user, r.alerts)
		if err != nil {
			return DigestDecision{}, err
		}
		m.Time = now
		if i > 0 { // a reader of several channels can tell messages with different alerts apart
			m.ID += fmt.Sprint("-", i+1)
		}
		made.Deliveries = append(made.Deliveries, deliveries(m, r.channels)...)
	}
	return made, nil
}

func (r *Rules) digestMessage(id, user string, alerts []*Alert) (Message, error) {
	d := summarize(id, user, alerts)
	m := Message{ID: id + ".digest", Kind: KindDigest, User: user, Severity: Severity(d.Severity),
		Title: fmt.Sprintf("%s held back for %s", counted(d.Alerts, "alert"), cmp.Or(user, "limits of no user")), Text: digestText(&d, r.ofSeveral(alerts))}
	d.Policies, d.Keys = d.Policies[:min(len(d.Policies), digestPolicies)], d.Keys[:min(len(d.Keys), digestKeys)]
	return m.with(d)
}

// ofSeveral counts the alerts that may be of several users: the one for whom they are held is the first. A key is of one.
func (r *Rules) ofSeveral(alerts []*Alert) (n int64) {
	for _, a := range alerts {
		if rule := r.rule(a.Rule); rule != nil && a.User != "" && !slices.Contains(rule.GroupBy, "user") && !slices.Contains(rule.GroupBy, "key") {
			n++
		}
	}
	return n
}

// postponed returns the held alerts that a digest at a time leaves out, because of quiet hours or a silence, each with its
// new HeldUntil. Those that end within the lead leave nothing out, nor do those that begin in it.
func (r *Rules) postponed(held []Alert, at time.Time, silences []Silence) map[string]int64 {
	all, quiet := map[string]int64{}, map[string]int64{} // by alert and by rule
	soon := at.Add(DigestLead)
	for i := range held {
		a := &held[i]
		until, known := quiet[a.Rule]
		if !known {
			_, isQuiet := r.rule(a.Rule).digestQuietUntil(at)
			if end, stays := r.rule(a.Rule).digestQuietUntil(soon); isQuiet && stays {
				until = holdUntil(end, soon)
			}
			quiet[a.Rule] = until
		}
		switch {
		case until > 0:
			all[a.ID] = until
		case slices.ContainsFunc(silences, func(s Silence) bool { return s.ExpiresAt > soon.UnixMilli() && s.matches(a) }):
			all[a.ID] = nextHour(soon).UnixMilli()
		}
	}
	return all
}

// holdUntil returns the HeldUntil of an alert that is to be held until a time, in Unix milliseconds. It is the next full
// hour at the latest: then it is checked again, because a silence may be ended early, and a reloaded file may have other
// quiet hours.
func holdUntil(until, at time.Time) int64 {
	if next := nextHour(at); next.Before(until) {
		until = next
	}
	return until.UnixMilli()
}

// summarize sums alerts for a digest, by policy and by key.
func summarize(id, user string, alerts []*Alert) limits.AlertDigest {
	d := limits.AlertDigest{Digest: id, User: user, Severity: string(maxSeverity(alerts))}
	policies, keys := map[string]limits.DigestCount{}, map[string]limits.DigestCount{}
	for _, a := range alerts {
		d.Alerts++
		denied := a.Denials()
		d.Denied += denied
		if d.FirstAt == 0 || a.FirstAt < d.FirstAt {
			d.FirstAt = a.FirstAt
		}
		d.LastAt = max(d.LastAt, a.LastAt)
		addCount(policies, a.Policy, denied)
		addCount(keys, a.Key, denied)
	}
	d.Policies = sortCounts(policies, func(c limits.DigestCount) int64 { return c.Alerts })
	d.Keys = sortCounts(keys, func(c limits.DigestCount) int64 { return c.Denied })
	return d
}

func addCount(counts map[string]limits.DigestCount, name string, denied int64) {
	c := counts[name]
	c.Name = name
	c.Alerts++
	c.Denied += denied
	counts[name] = c
}

// sortCounts sorts counts by a number, the greatest first, then by name.
func sortCounts(counts map[string]limits.DigestCount, by func(limits.DigestCount) int64) []limits.DigestCount {
	return slices.SortedFunc(maps.Values(counts), func(a, b limits.DigestCount) int {
		return cmp.Or(cmp.Compare(by(b), by(a)), strings.Compare(a.Name, b.Name))
	})
}

func maxSeverity(alerts []*Alert) Severity {
	greatest := 0
	for _, a := range alerts {
		greatest = max(greatest, slices.Index(severities(), a.Severity))
	}
	return severities()[greatest]
}

// recipients are channels that get the same alerts.
type recipients struct {
	channels []string
	alerts   []*Alert
}

// recipients returns every channel once, with the alerts that would have been sent to it.
func (r *Rules) recipients(alerts []*Alert) (all []recipients) {
	byChannel := map[string][]*Alert{}
	for _, a := range alerts {
		for _, c := range r.channelsOf(a) {
			byChannel[c] = append(byChannel[c], a)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(byChannel)) {
		i := slices.IndexFunc(all, func(x recipients) bool { return slices.Equal(x.alerts, byChannel[c]) })
		if i < 0 {
			i, all = len(all), append(all, recipients{alerts: byChannel[c]})
		}
		all[i].channels = append(all[i].channels, c)
	}
	return all
}

// digestText writes a digest as text. ofSeveral of its alerts may be of several users.
func digestText(d *limits.AlertDigest, ofSeveral int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s with %s between %s and %s.", counted(d.Alerts, "alert"), denials(d.Denied), humanTime(d.FirstAt), humanTime(d.LastAt))
	if ofSeveral > 0 {
		fmt.Fprintf(&b, "\nNot of this user alone: %s.", counted(ofSeveral, "alert"))
	}
	for i, p := range d.Policies {
		if i == digestKeys {
			b.WriteString(more(len(d.Policies)-i, "policy", "policies"))
			break
		}
		fmt.Fprintf(&b, "\npolicy %s: %s, %s", cmp.Or(p.Name, "(inline)"), counted(p.Alerts, "alert"), denials(p.Denied))
	}
	for i, k := range d.Keys {
		if i == digestKeys {
			b.WriteString(more(len(d.Keys)-i, "key", "keys"))
			break
		}
		fmt.Fprintf(&b, "\ne.g. key %s: %s, %s", k.Name, counted(k.Alerts, "alert"), denials(k.Denied))
	}
	return b.String()
}

// more is the line for what a digest does not name.
func more(n int, one, many string) string {
	if n == 1 {
		return "\n… and 1 more " + one
	}
	return fmt.Sprintf("\n… and %d more %s", n, many)
}

// denials writes a number of denials; it is 0 if all alerts are warnings.
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
