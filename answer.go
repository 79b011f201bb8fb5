package limits

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// answerFields has, by subject, a field that no answer of a limiter or an alerter lacks.
var answerFields = map[string]string{
	SubjectConsume: "allowed", SubjectCheck: "allowed", SubjectRecord: "allowed", SubjectRefund: "allowed", SubjectSettle: "allowed",
	SubjectStatus: "counters", SubjectList: "counters", SubjectReset: "reset", SubjectPolicies: "policies",
	SubjectTop: "rows", SubjectUsageReport: "since",
	SubjectVerify: "valid", SubjectKeysCreate: "apiKey", SubjectKeysList: "keys", SubjectKeysRevoke: "key", SubjectKeysExpire: "key",
	SubjectOverridesSet: "override", SubjectOverridesDelete: "deleted", SubjectOverridesList: "overrides",
	SubjectJobsList: "jobs", SubjectJobsRun: "run", SubjectJobsHistory: "runs",
	SubjectAlertsList: "alerts", SubjectAlertsShow: "deliveries", SubjectAlertsSilence: "silence", SubjectAlertsUnsilence: "silence",
	SubjectAlertsSilences: "silences", SubjectAlertsDead: "deliveries", SubjectAlertsReplay: "replayed", SubjectAlertsTest: "channels",
	SubjectAlertsChannels: "channels",
}

// checkAnswer checks that an answer is from a limiter or an alerter. Otherwise that of another service, such as {}, or
// of a stream that has the subject too, would be read as an empty list, a denial or a success.
func checkAnswer(subject string, answer []byte) error {
	field, known := answerFields[subject]
	if !known {
		return nil
	}
	// Decisions begin with their field, so that only others are parsed twice.
	if bytes.HasPrefix(answer, []byte(`{"`+field+`"`)) {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(answer, &fields); err != nil {
		return fmt.Errorf("%s: read answer: %w", subject, err)
	}
	if fields[field] != nil {
		return nil
	}
	err := missingField(subject, field)
	var ack struct {
		Stream string `json:"stream"`
	}
	if json.Unmarshal(answer, &ack) == nil && ack.Stream != "" {
		return fmt.Errorf("%w: JetStream stream %q has the subject too, and acknowledges requests before a limiter has answered; "+
			"remove the subject from that stream", err, ack.Stream)
	}
	return err
}

func missingField(subject, field string) error {
	return fmt.Errorf("%s: read answer: field %q is missing, so it is not from a limiter", subject, field)
}
