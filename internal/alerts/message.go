package alerts

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/seed503877ad/limits"
)

// data returns an alert in the form in which events publish it.
func (a *Alert) data() limits.AlertRaised {
	return limits.AlertRaised{
		Alert: a.ID, Rule: a.Rule, Severity: string(a.Severity), Event: a.Type, User: a.User, Policy: a.Policy,
		Name: a.Name, Key: a.Key, Window: a.Window, Limit: a.Limit, Denied: a.Denials(), Events: a.Events,
		FirstAt: a.FirstAt, LastAt: a.LastAt, RaisedAt: a.RaisedAt, Title: a.Title, Text: a.Text,
	}
}

// raisedMessage says that an alert was raised. Its id is derived from the alert's, so two processes that make it make the
// same message.
func raisedMessage(a *Alert) (Message, error) {
	m := Message{ID: a.ID + ".raised", Kind: KindRaised, Time: a.RaisedAt, Severity: a.Severity, User: a.User, Title: a.Title, Text: a.Text}
	return m.with(a.data())
}

func resolvedMessage(a *Alert) (Message, error) {
	m := Message{ID: a.ID + ".resolved", Kind: KindResolved, Time: a.ResolvedAt, Severity: a.Severity, User: a.User,
		Title: "Resolved: " + a.Title,
		Text:  resolvedText(a)}
	return m.with(limits.AlertResolved{AlertRaised: a.data(), ResolvedAt: a.ResolvedAt})
}

func resolvedText(a *Alert) string {
	lasted := (time.Duration(a.LastAt-a.FirstAt) * time.Millisecond).Round(time.Second)
	if a.Type == limits.EventWarning {
		return fmt.Sprintf("No warning since %s; %s over %s.", humanTime(a.LastAt), counted(a.Events, "warning"), lasted)
	}
	return fmt.Sprintf("No denial since %s; %d denied over %s.", humanTime(a.LastAt), a.Denied, lasted)
}

// Denials returns how many denials the alert is of. It is 0 for warnings, which count as one only for their rule's threshold:
// the request passed.
func (a *Alert) Denials() int64 {
	if a.Type == limits.EventWarning {
		return 0
	}
	return a.Denied
}

// humanTime formats Unix milliseconds for people.
func humanTime(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05 UTC") }

func (m Message) with(data any) (Message, error) {
	var err error
	m.Data, err = json.Marshal(data)
	return m, err
}

// deliveries returns one delivery of a message for each channel.
func deliveries(m Message, channels []string) []Delivery {
	all := make([]Delivery, len(channels))
	for i, c := range channels {
		all[i] = NewDelivery(m, c)
	}
	return all
}
