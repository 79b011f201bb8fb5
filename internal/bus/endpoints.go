package bus

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// endpoint is a subject and what handles it.
type endpoint struct {
	subject string
	handle  micro.HandlerFunc
}

// decided are the subjects of which the engine decides.
var decided = map[string]engine.Verb{
	limits.SubjectConsume: engine.Consume,
	limits.SubjectCheck:   engine.Check,
	limits.SubjectRecord:  engine.Record,
	limits.SubjectRefund:  engine.Refund,
}

// endpoints gives those of the parts that are there; without decide not those that the worker answers which decides,
// among them all that changes what it decides. What administers is below limits.admin, so that permissions can tell:
// whoever may create API keys may act as any user.
func (s *Service) endpoints(decide bool) (all []endpoint) {
	c := &s.cfg
	limiter := c.Engine != nil
	decides := limiter && decide
	for _, part := range []struct {
		there     bool
		endpoints []endpoint
	}{
		{decides, []endpoint{
			{limits.SubjectConsume, s.decides},
			{limits.SubjectCheck, s.decides},
			{limits.SubjectRecord, s.decides},
			{limits.SubjectRefund, s.decides},
			{limits.SubjectStatus, s.beside(s.statuses, readTimeout, s.status)},
			{limits.SubjectList, s.answers(s.list)},
			{limits.SubjectReset, s.works(s.reset)},
			{limits.SubjectSettle, s.beside(s.settles, readTimeout, s.settle)},
		}},
		{limiter, []endpoint{
			{limits.SubjectPolicies, s.answers(s.policies)},
		}},
		{limiter && c.UsageLog != nil, []endpoint{
			{limits.SubjectUsage, s.logsRequests()},
		}},
		{limiter && c.Usage != nil, []endpoint{
			{limits.SubjectTop, s.works(s.top)},
			{limits.SubjectUsageReport, s.works(s.usage)},
		}},
		{decides && c.Keys != nil, []endpoint{
			{limits.SubjectVerify, s.verify},
			{limits.SubjectKeysCreate, s.answers(s.createKey)},
			{limits.SubjectKeysList, s.answers(s.listKeys)},
			{limits.SubjectKeysRevoke, s.answers(s.revokeKey)},
			{limits.SubjectKeysExpire, s.answers(s.expireKey)},
		}},
		{decides && c.Overrides != nil, []endpoint{
			{limits.SubjectOverridesSet, s.answers(s.setOverride)},
			{limits.SubjectOverridesDelete, s.answers(s.deleteOverride)},
			{limits.SubjectOverridesList, s.answers(s.listOverrides)},
		}},
		{c.Jobs != nil, []endpoint{
			{limits.SubjectJobsList, s.answers(s.listJobs)},
			{limits.SubjectJobsRun, s.answers(s.runJob)},
			{limits.SubjectJobsHistory, s.answers(s.jobHistory)},
		}},
		{c.Alerts != nil, []endpoint{
			{limits.SubjectAlertsList, s.answers(s.listAlerts)},
			{limits.SubjectAlertsShow, s.answers(s.showAlert)},
			{limits.SubjectAlertsSilence, s.answers(s.silence)},
			{limits.SubjectAlertsUnsilence, s.answers(s.unsilence)},
			{limits.SubjectAlertsSilences, s.answers(s.listSilences)},
			{limits.SubjectAlertsDead, s.answers(s.deadLetters)},
			{limits.SubjectAlertsReplay, s.answers(s.replay)},
			{limits.SubjectAlertsTest, s.answers(s.testAlert)},
			{limits.SubjectAlertsChannels, s.answers(s.listChannels)},
		}},
	} {
		if part.there {
			all = append(all, part.endpoints...)
		}
	}
	return all
}

// pendingMessages and pendingBytes bound what one endpoint has received and not handed on; what is past them is dropped by
// nats.go. The engine's queue is full, and answers so, long before. Lines of the request log have usageBytes: nobody waits for them but
// a stop.
const (
	pendingMessages = 65536
	pendingBytes    = 64 << 20
	usageBytes      = 4 << 20
)

// addEndpoints subscribes to the subjects.
func (s *Service) addEndpoints(m micro.Service, endpoints []endpoint) error {
	for _, e := range endpoints {
		schemas := map[string]string{"request-schema": s.cfg.SchemaBase + "/" + requestSchema(e.subject)}
		if reply := replySchema(e.subject); reply != "" {
			schemas["response-schema"] = s.cfg.SchemaBase + "/" + reply
			schemas["error-schema"] = s.cfg.SchemaBase + "/" + schemaError
		}
		pending := pendingBytes
		if e.subject == limits.SubjectUsage {
			pending = usageBytes
		}
		name := endpointName(e.subject)
		err := m.AddEndpoint(name, e.handle,
			micro.WithEndpointSubject(e.subject),
			micro.WithEndpointPendingLimits(pendingMessages, pending),
			micro.WithEndpointMetadata(schemas))
		if err != nil {
			return fmt.Errorf("add endpoint %s: %w", name, err)
		}
	}
	return nil
}

// endpointName is the subject below the service's, such as admin-list for limits.admin.list: a name has no dots.
func endpointName(subject string) string {
	return strings.ReplaceAll(strings.TrimPrefix(subject, limits.ServiceName+"."), ".", "-")
}
