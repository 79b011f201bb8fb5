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
	limits.SubjectSettle:  engine.Settle,
}

// endpoints lists the endpoints of the configured parts. Without decide it leaves out those that only
// the deciding worker serves. Among these are all that change what it decides.
func (s *Service) endpoints(decide bool) (all []endpoint) {
	for _, part := range s.parts(decide) {
		if part.served {
			all = append(all, part.endpoints...)
		}
	}
	return all
}

// part is a part of the service with its endpoints.
type part struct {
	served    bool
	endpoints []endpoint
}

// parts are all parts of the service. Administration is below limits.admin, so that permissions can
// separate it: whoever may create API keys may act as any user.
func (s *Service) parts(decide bool) []part {
	c := &s.cfg
	limiter := c.Engine != nil
	decides := limiter && decide
	return []part{
		{decides, []endpoint{
			{limits.SubjectConsume, s.handleDecision},
			{limits.SubjectCheck, s.handleDecision},
			{limits.SubjectRecord, s.handleDecision},
			{limits.SubjectRefund, s.handleDecision},
			{limits.SubjectStatus, s.asyncHandler(s.statusSlots, s.cfg.storeTimeout, s.status)},
			{limits.SubjectList, s.storeHandler(s.list)},
			{limits.SubjectReset, s.asyncHandler(s.storeSlots, s.cfg.scanTimeout, s.reset)},
			{limits.SubjectSettle, s.handleDecision},
		}},
		{limiter, []endpoint{
			{limits.SubjectPolicies, s.storeHandler(s.policies)},
		}},
		{limiter && c.UsageLog != nil, []endpoint{
			{limits.SubjectUsage, s.logUsage},
		}},
		{limiter && c.Usage != nil, []endpoint{
			{limits.SubjectTop, s.reportHandler(s.top)},
			{limits.SubjectUsageReport, s.reportHandler(s.usage)},
		}},
		{decides && c.Keys != nil, []endpoint{
			{limits.SubjectVerify, s.verify},
			{limits.SubjectKeysCreate, s.storeHandler(s.createKey)},
			{limits.SubjectKeysList, s.storeHandler(s.listKeys)},
			{limits.SubjectKeysRevoke, s.storeHandler(s.revokeKey)},
			{limits.SubjectKeysExpire, s.storeHandler(s.expireKey)},
		}},
		{decides && c.Overrides != nil, []endpoint{
			{limits.SubjectOverridesSet, s.storeHandler(s.setOverride)},
			{limits.SubjectOverridesDelete, s.storeHandler(s.deleteOverride)},
			{limits.SubjectOverridesList, s.storeHandler(s.listOverrides)},
		}},
		{c.Jobs != nil, []endpoint{
			{limits.SubjectJobsList, s.storeHandler(s.listJobs)},
			{limits.SubjectJobsRun, s.storeHandler(s.runJob)},
			{limits.SubjectJobsHistory, s.storeHandler(s.jobHistory)},
		}},
		{c.Alerts != nil, []endpoint{
			{limits.SubjectAlertsList, s.storeHandler(s.listAlerts)},
			{limits.SubjectAlertsShow, s.storeHandler(s.showAlert)},
			{limits.SubjectAlertsSilence, s.storeHandler(s.silence)},
			{limits.SubjectAlertsUnsilence, s.storeHandler(s.unsilence)},
			{limits.SubjectAlertsSilences, s.storeHandler(s.listSilences)},
			{limits.SubjectAlertsDead, s.storeHandler(s.deadLetters)},
			{limits.SubjectAlertsReplay, s.storeHandler(s.replay)},
			{limits.SubjectAlertsTest, s.storeHandler(s.testAlert)},
			{limits.SubjectAlertsChannels, s.storeHandler(s.listChannels)},
		}},
	}
}

// maxPendingMessages and maxPendingBytes bound what one endpoint has received and not handled yet.
// nats.go drops what exceeds them. Requests for decisions are mostly answered 503 long before,
// because the engine's queue is full or they have waited too long. Lines of the request log have
// maxPendingUsageBytes, because nothing but a stop waits for them.
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
