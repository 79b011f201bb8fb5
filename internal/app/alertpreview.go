package app

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/bus"
)

// PreviewOptions say which rules are tried on which events.
type PreviewOptions struct {
	// Conn reaches the NATS server that keeps the events.
	Conn *nats.Conn
	// Rules are tried on the events.
	Rules *AlertRules
	// Since selects events that reached the stream at this time or later.
	Since time.Time
	// Max bounds how many events are read, the oldest first.
	Max int
	// Progress is called now and then with how many events of how many were read.
	Progress func(read, total uint64)
}

// AlertPreview is what rules would have made of past events.
type AlertPreview struct {
	// Events counts the events that were read, Matched those that a rule matched, Unreadable the messages that were no
	// events, and Left the events that were not read because of Max.
	Events     int64  `json:"events"`
	Matched    int64  `json:"matched"`
	Unreadable int    `json:"unreadable"`
	Left       uint64 `json:"left"`
	// Sent and Held count the alerts. Withheld counts warnings that were dropped while an exceeded alert was open.
	Sent     int64 `json:"sent"`
	Held     int64 `json:"held"`
	Withheld int64 `json:"withheld"`
	// Alerts are in the order in which they would have been raised.
	Alerts []limits.Alert `json:"alerts"`
}

// PreviewAlerts runs rules over events of the stream in memory. It acknowledges, stores and sends nothing.
func PreviewAlerts(ctx context.Context, o PreviewOptions) (*AlertPreview, error) {
	var history bus.History
	var read error
	p, err := alerts.NewPreview(o.Rules, func(yield func(alerts.Event) bool) {
		history, read = bus.ReadHistory(ctx, bus.HistoryConfig{Conn: o.Conn, Since: o.Since, Max: o.Max, Progress: o.Progress}, yield)
	})
	if read != nil {
		return nil, read
	}
	if err != nil {
		return nil, err
	}
	out := &AlertPreview{Events: p.Events, Matched: p.Matched, Unreadable: history.Unreadable, Left: history.Left,
		Sent: p.Sent, Held: p.Held, Withheld: p.Withheld, Alerts: make([]limits.Alert, len(p.Alerts))}
	for i := range p.Alerts {
		out.Alerts[i] = bus.WireAlert(&p.Alerts[i])
	}
	return out, nil
}

// PreviewRules reads an alerts file without its secrets, because nothing is sent. Without a file it returns the built-in
// rule.
func PreviewRules(file string) (*AlertRules, error) {
	if file == "" {
		return alerts.Default(), nil
	}
	rules, _, err := LoadAlerts(file, false)
	return rules, err
}
