package app

import (
	"context"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/bus"
)

// EventHistory says which events of the stream are read.
type EventHistory = bus.HistoryConfig

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
func PreviewAlerts(ctx context.Context, rules *AlertRules, past EventHistory) (*AlertPreview, error) {
	var history bus.History
	var read error
	p, err := alerts.NewPreview(rules, func(yield func(alerts.Event) bool) {
		history, read = bus.ReadHistory(ctx, past, yield)
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
