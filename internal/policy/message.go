package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// placeholders are those that a message may have. {policy} and {unit} are replaced when the file is read, the others when
// a request is denied.
var placeholders = []string{"used", "limit", "remaining", "cost", "window", "retry", "name", "key", "policy", "unit"}

const maxMessageBytes = 512

// message validates the placeholders of a message and replaces those whose values never change.
func (c *compiler) message(spec *Policy, path string) string {
	if len(spec.Message) > maxMessageBytes {
		c.Add(path, "has %d bytes; want at most %d", len(spec.Message), maxMessageBytes)
		return ""
	}
	rest := spec.Message
	for {
		_, after, open := strings.Cut(rest, "{")
		if !open {
			break
		}
		name, remainder, closed := strings.Cut(after, "}")
		switch {
		case !closed:
			c.Add(path, "has a { without a }; write placeholders as {retry}")
			return ""
		case name == "unit" && spec.Unit == "":
			c.Add(path, "uses {unit}, but the policy has no unit; add one, such as unit: requests")
		case name == "unit" && strings.Contains(spec.Unit, "{"): // a placeholder in it would be replaced, too
			c.Add(path, "uses {unit}, but the unit has a {; remove it there")
		case !slices.Contains(placeholders, name):
			c.Add(path, "unknown placeholder {%s}%s; want one of {%s}", strings.Trim(yamlfile.Quote(name), `"`),
				yamlfile.DidYouMean(name, placeholders), strings.Join(placeholders, "}, {"))
		}
		rest = remainder
	}
	return strings.NewReplacer("{policy}", spec.Name, "{unit}", spec.Unit).Replace(spec.Message)
}

// AppendMessage appends the message of a denial's policy, with the values of the denial. The denial must have a RetryAfter.
func AppendMessage(b []byte, r *engine.Result, cost int64) []byte {
	rest := r.Message
	for {
		before, after, open := strings.Cut(rest, "{")
		b = append(b, before...)
		name, remainder, closed := strings.Cut(after, "}")
		if !open || !closed {
			return b
		}
		b, rest = appendPlaceholder(b, name, r, cost), remainder
	}
}

func appendPlaceholder(b []byte, name string, r *engine.Result, cost int64) []byte {
	switch name {
	case "used":
		return strconv.AppendInt(b, r.Used, 10)
	case "limit":
		return strconv.AppendInt(b, r.Limit+r.Burst, 10) // {used} of a token bucket counts the burst, too
	case "remaining":
		return strconv.AppendInt(b, r.Remaining, 10)
	case "cost":
		return strconv.AppendInt(b, cost, 10)
	case "window":
		return append(b, windowInWords(r.Window, r.FirstUse)...)
	case "retry":
		return append(b, waitInWords(r.RetryAfter)...)
	case "name":
		return append(b, r.Name...)
	case "key":
		return append(b, r.Key...)
	default:
		return b
	}
}

var wordUnits = []struct {
	millis int64
	name   string
}{{86_400_000, "day"}, {3_600_000, "hour"}, {60_000, "minute"}, {1000, "second"}}

// waitInWords describes a wait in one unit, rounded up so that it is always long enough: "37 seconds", "2 minutes",
// "8 hours". Between one and two hours, or days, it uses the smaller unit: "61 minutes" and not "2 hours". Package
// httplimit has the same words, and cannot import them.
func waitInWords(millis int64) string {
	units := func(length int64) int64 { return (millis + length - 1) / length }
	seconds, minutes, hours := units(1000), units(60_000), units(3_600_000)
	switch {
	case seconds < 60:
		return amountOf(seconds, "second")
	case minutes != 60 && minutes < 120:
		return amountOf(minutes, "minute")
	case hours != 24 && hours < 48:
		return amountOf(hours, "hour")
	default:
		return amountOf(units(86_400_000), "day")
	}
}

// windowInWords describes a window: "today", "this minute", "in 5 minutes", or "in a day" if it starts at its first use.
func windowInWords(text string, firstUse bool) string {
	w, err := engine.ParseWindow(text)
	switch {
	case err != nil:
		return text
	case firstUse && w.Period == engine.PeriodHour:
		return "in an hour"
	case firstUse && w.Period != 0:
		return "in a " + text
	case w.Period == engine.PeriodDay:
		return "today"
	case w.Period != 0:
		return "this " + text
	}
	for _, u := range wordUnits {
		if w.Millis%u.millis == 0 {
			return "in " + amountOf(w.Millis/u.millis, u.name)
		}
	}
	return fmt.Sprintf("in %d milliseconds", w.Millis)
}

func amountOf(n int64, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return strconv.FormatInt(n, 10) + " " + unit + "s"
}
