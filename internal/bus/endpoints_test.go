package bus

import (
	"encoding/json"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
	"github.com/seed503877ad/limits/internal/jobs"
	"github.com/seed503877ad/limits/internal/keys"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/internal/testenv"
	"github.com/seed503877ad/limits/schemas"
)

// fullService is a service with all parts, which can list its endpoints.
func fullService() *Service {
	return &Service{cfg: ServiceConfig{Engine: new(fakeEngine), UsageLog: newFakeUsage(), Usage: newFakeUsage(), Keys: new(keys.Registry),
		Overrides: new(overrides.Table), Jobs: new(jobs.Runner), Alerts: new(alerts.Admin)}}
}

// TestEndpointSchemasExist: the schemas that endpoints name are exactly the files that are there.
func TestEndpointSchemasExist(t *testing.T) {
	named := map[string]bool{schemaError: true}
	for _, e := range fullService().endpoints(true) {
		named[requestSchema(e.subject)], named[replySchema(e.subject)] = true, true
	}
	delete(named, "") // limits.usage answers nothing
	files, err := fs.Glob(schemas.FS, "api/*.json")
	if got := slices.Sorted(maps.Keys(named)); err != nil || !slices.Equal(got, files) {
		t.Errorf("endpoints name %v, files are %v, %v", got, files, err)
	}
}

// TestOnlyWhoDecidesServesWhatIsDecided: a worker that stands by, or an alerter, reads what all workers share.
func TestOnlyWhoDecidesServesWhatIsDecided(t *testing.T) {
	t.Parallel()
	subjects := func(s *Service, decide bool) (all []string) {
		for _, e := range s.endpoints(decide) {
			if !strings.HasPrefix(e.subject, "limits.admin.alerts.") && !strings.HasPrefix(e.subject, "limits.admin.jobs.") {
				all = append(all, e.subject)
			}
		}
		return all
	}
	standby := []string{limits.SubjectPolicies, limits.SubjectUsage, limits.SubjectTop, limits.SubjectUsageReport}
	if got := subjects(fullService(), false); !slices.Equal(got, standby) {
		t.Errorf("a worker that stands by serves %v", got)
	}
	alerter := fullService()
	alerter.cfg.Engine = nil
	if got := subjects(alerter, true); len(got) > 0 {
		t.Errorf("an alerter serves %v", got)
	}
}

// TestErrorsNameServedSubjects, so that following an error's advice gets an answer.
func TestErrorsNameServedSubjects(t *testing.T) {
	s := fullService()
	served := map[string]bool{}
	for _, e := range s.endpoints(true) {
		served[e.subject] = true
	}
	_, noAlert := s.showAlert(t.Context(), []byte("{}"))
	_, noSilence := s.unsilence(t.Context(), []byte("{}"))
	_, noJob := s.runJob(t.Context(), []byte("{}"))
	_, noKey := s.keyChanged("", "x", keys.Key{}, keys.ErrUnknown)
	for _, err := range []error{noAlert, noSilence, noJob, noKey, jobError("x", jobs.ErrUnknown), jobError("x", jobs.ErrBusy),
		alertError("x", alerts.ErrUnknownAlert), alertError("x", alerts.ErrUnknownSilence), alertError("x", alerts.ErrUnknownDelivery),
		alertError("x", alerts.ErrUnknownChannel), policyError(&policy.Question{Policy: "x"}, policy.ErrUnknownPolicy)} {
		if subject := regexp.MustCompile(`[a-z.]*admin[a-z.]*`).FindString(err.Error()); !served[subject] {
			t.Errorf("%v: nothing serves %q", err, subject)
		}
	}
}

// TestForeignAnswersAreToldFromThoseOfTheService, on every subject: the smallest answer that its schema allows is read, and what
// a stream answers that has the subject too is not.
func TestForeignAnswersAreToldFromThoseOfTheService(t *testing.T) {
	t.Parallel()
	nc := dial(t, testenv.NATS(t).ClientURL())
	if _, err := testenv.JetStream(t, nc).CreateStream(t.Context(), jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"limits.>"}}); err != nil {
		t.Fatal(err)
	}
	plain := dial(t, testenv.NATS(t).ClientURL())
	ours, theirs := limits.NewClient(plain, limits.Timeout(patience)), limits.NewClient(nc, limits.Timeout(patience))
	for _, e := range fullService().endpoints(true) {
		if replySchema(e.subject) == "" {
			continue
		}
		data, err := fs.ReadFile(schemas.FS, replySchema(e.subject))
		if err != nil {
			t.Fatal(err)
		}
		var schema struct{ Required []string }
		if err := json.Unmarshal(data, &schema); err != nil {
			t.Fatal(err)
		}
		smallest := map[string]any{}
		for _, field := range schema.Required {
			smallest[field] = nil
		}
		answer, err := json.Marshal(smallest)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plain.Subscribe(e.subject, func(m *nats.Msg) { _ = m.Respond(answer) }); err != nil {
			t.Fatal(err)
		}
		if got, err := ours.Do(t.Context(), e.subject, []byte("{}")); err != nil || string(got) != string(answer) {
			t.Errorf("%s: %s, %v, want %s", e.subject, got, err, answer)
		}
		if got, err := theirs.Do(t.Context(), e.subject, []byte("{}")); err == nil || !strings.Contains(err.Error(), `stream "AUDIT" has the subject too`) {
			t.Errorf("%s: %s, %v", e.subject, got, err)
		}
	}
}
