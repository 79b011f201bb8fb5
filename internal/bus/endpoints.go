package bus

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/micro"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
)

// endpoint is a subject and its handler.
type endpoint struct {
	subject string
	handle  micro.HandlerFunc
}

// engineVerbs has the subjects that the engine decides.
var engineVerbs = map[string]engine.Verb{
	limits.SubjectConsume: engine.Consume,
	limits.SubjectCheck:   engine.Check,
	limits.SubjectRecord:  engine.Record,
	limits.SubjectRefund:  engine.Refund,
}

// endpoints lists the endpoints of the configured parts. Without decide it leaves out those that
// only the deciding worker serves, which are also all that change what it decides. Administration
// is below limits.admin, so that permissions can separate it: whoever may create API keys may act
// as any user.
func (s *Service) endpoints(decide bool) (all []endpoint) {
	c := &s.cfg
	limiter := c.Engine != nil
	decides := limiter && decide
	for _, part := range []struct {
		there     bool
		endpoints []endpoint
	}{
		{decides, []endpoint{
			{limits.SubjectConsume, s.handleDecision},
			{limits.SubjectCheck, s.handleDecision},
			{limits.SubjectRecord, s.handleDecision},
			{limits.SubjectRefund, s.handleDecision},
			{limits.SubjectStatus, s.asyncHandler(s.statusSlots, readTimeout, s.status)},
			{limits.SubjectList, s.readHandler(s.list)},
			{limits.SubjectReset, s.scanHandler(s.reset)},
			{limits.SubjectSettle, s.asyncHandler(s.settleSlots, readTimeout, s.settle)},
		}},
		{limiter, []endpoint{
			{limits.SubjectPolicies, s.readHandler(s.policies)},
		}},
		{limiter && c.UsageLog != nil, []endpoint{
			{limits.SubjectUsage, s.usageLogHandler()},
		}},
		{limiter && c.Usage != nil, []endpoint{
			{limits.SubjectTop, s.scanHandler(s.top)},
			{limits.SubjectUsageReport, s.scanHandler(s.usage)},
		}},
		{decides && c.Keys != nil, []endpoint{
			{limits.SubjectVerify, s.verify},
			{limits.SubjectKeysCreate, s.readHandler(s.createKey)},
			{limits.SubjectKeysList, s.readHandler(s.listKeys)},
			{limits.SubjectKeysRevoke, s.readHandler(s.revokeKey)},
			{limits.SubjectKeysExpire, s.readHandler(s.expireKey)},
		}},
		{decides && c.Overrides != nil, []endpoint{
			{limits.SubjectOverridesSet, s.readHandler(s.setOverride)},
			{limits.SubjectOverridesDelete, s.readHandler(s.deleteOverride)},
			{limits.SubjectOverridesList, s.readHandler(s.listOverrides)},
		}},
		{c.Jobs != nil, []endpoint{
			{limits.SubjectJobsList, s.readHandler(s.listJobs)},
			{limits.SubjectJobsRun, s.readHandler(s.runJob)},
			{limits.SubjectJobsHistory, s.readHandler(s.jobHistory)},
		}},
		{c.Alerts != nil, []endpoint{
			{limits.SubjectAlertsList, s.readHandler(s.listAlerts)},
			{limits.SubjectAlertsShow, s.readHandler(s.showAlert)},
			{limits.SubjectAlertsSilence, s.readHandler(s.silence)},
			{limits.SubjectAlertsUnsilence, s.readHandler(s.unsilence)},
			{limits.SubjectAlertsSilences, s.readHandler(s.listSilences)},
			{limits.SubjectAlertsDead, s.readHandler(s.deadLetters)},
			{limits.SubjectAlertsReplay, s.readHandler(s.replay)},
			{limits.SubjectAlertsTest, s.readHandler(s.testAlert)},
			{limits.SubjectAlertsChannels, s.readHandler(s.listChannels)},
		}},
	} {
		if part.there {
			all = append(all, part.endpoints...)
		}
	}
	return all
}

// maxPendingMessages and maxPendingBytes bound what one endpoint has received and not handled yet.
// nats.go drops what exceeds them. The engine's queue is full long before and answers 503. Lines of
// the request log have maxPendingUsageBytes, because nothing but a stop waits for them.
const (
	maxPendingMessages   = 65536
	maxPendingBytes      = 64 << 20
	maxPendingUsageBytes = 4 << 20
)

// addEndpoints subscribes the endpoints.
func (s *Service) addEndpoints(m micro.Service, endpoints []endpoint) error {
	for _, e := range endpoints {
		schemas := map[string]string{"request-schema": s.cfg.SchemaBase + "/" + requestSchema(e.subject)}
		if reply := replySchema(e.subject); reply != "" {
			schemas["response-schema"] = s.cfg.SchemaBase + "/" + reply
			schemas["error-schema"] = s.cfg.SchemaBase + "/" + schemaError
		}
		pending := maxPendingBytes
		if e.subject == limits.SubjectUsage {
			pending = maxPendingUsageBytes
		}
		name := endpointName(e.subject)
		err := m.AddEndpoint(name, e.handle,
			micro.WithEndpointSubject(e.subject),
			micro.WithEndpointPendingLimits(maxPendingMessages, pending),
			micro.WithEndpointMetadata(schemas))
		if err != nil {
			return fmt.Errorf("add endpoint %s: %w", name, err)
		}
	}
	return nil
}

// endpointName is the part of the subject after the service's name, such as admin-list for
// limits.admin.list, because a name has no dots.
func endpointName(subject string) string {
	return strings.ReplaceAll(strings.TrimPrefix(subject, limits.ServiceName+"."), ".", "-")
}
