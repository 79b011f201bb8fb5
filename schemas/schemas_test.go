package schemas_test

import (
	"encoding/json"
	"flag"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/schemas"
)

var update = flag.Bool("update", false, "write the schemas instead of comparing them")

// maxTime is the latest time that RFC 3339 can express, in Unix milliseconds.
const maxTime = "253402300799999"

const module = "github.com/seed503877ad/limits"

// definitions are the wire types, and refinements of their schemas that the types do not express.
var definitions = map[string]struct {
	value  any
	title  string
	refine func(*jsonschema.Schema)
}{
	"api/request.v1.json":                  {limits.Request{}, "Body of consume, check, record and refund", refineRequest},
	"api/reply.v1.json":                    {limits.Reply{}, "Reply of consume, check, record and refund", nil},
	"api/status-request.v1.json":           {limits.StatusRequest{}, "Body of status", refineStatusRequest},
	"api/status.v1.json":                   {limits.Status{}, "Reply of status", nil},
	"api/list-request.v1.json":             {limits.ListRequest{}, "Body of admin.list", refineList},
	"api/list.v1.json":                     {limits.List{}, "Reply of admin.list", nil},
	"api/reset-request.v1.json":            {limits.ResetRequest{}, "Body of admin.reset", refineReset},
	"api/reset.v1.json":                    {limits.ResetReply{}, "Reply of admin.reset", nil},
	"api/settle-request.v1.json":           {limits.SettleRequest{}, "Body of settle", refineSettle},
	"api/log-entry.v1.json":                {limits.LogEntry{}, "Body of usage", refineLogEntry},
	"api/top-request.v1.json":              {limits.TopRequest{}, "Body of admin.top", refineUsage},
	"api/top.v1.json":                      {limits.Top{}, "Reply of admin.top", refineTop},
	"api/usage-request.v1.json":            {limits.UsageRequest{}, "Body of admin.usage", refineUsage},
	"api/usage.v1.json":                    {limits.Usage{}, "Reply of admin.usage", nil},
	"api/verify-request.v1.json":           {limits.VerifyRequest{}, "Body of verify", refineAttributes(limits.MaxAttributes)},
	"api/verify.v1.json":                   {limits.VerifyReply{}, "Reply of verify", nil},
	"api/keys-create-request.v1.json":      {limits.CreateKeyRequest{}, "Body of admin.keys.create", refineAttributes(limits.MaxKeyAttributes)},
	"api/keys-create.v1.json":              {limits.CreateKeyReply{}, "Reply of admin.keys.create", nil},
	"api/keys-list-request.v1.json":        {limits.ListKeysRequest{}, "Body of admin.keys.list", refineListKeys},
	"api/keys-list.v1.json":                {limits.KeyList{}, "Reply of admin.keys.list", nil},
	"api/keys-revoke-request.v1.json":      {limits.RevokeKeyRequest{}, "Body of admin.keys.revoke", refineKeyID},
	"api/keys-expire-request.v1.json":      {limits.ExpireKeyRequest{}, "Body of admin.keys.expire", refineKeyID},
	"api/key.v1.json":                      {limits.KeyReply{}, "Reply of admin.keys.revoke and admin.keys.expire", nil},
	"api/overrides-set-request.v1.json":    {limits.SetOverrideRequest{}, "Body of admin.overrides.set", refineOverride},
	"api/overrides-set.v1.json":            {limits.OverrideReply{}, "Reply of admin.overrides.set", nil},
	"api/overrides-delete-request.v1.json": {limits.OverrideID{}, "Body of admin.overrides.delete", refineSubject},
	"api/overrides-delete.v1.json":         {limits.DeleteOverrideReply{}, "Reply of admin.overrides.delete", nil},
	"api/overrides-list-request.v1.json":   {limits.ListOverridesRequest{}, "Body of admin.overrides.list", refineListOverrides},
	"api/overrides-list.v1.json":           {limits.OverrideList{}, "Reply of admin.overrides.list", nil},
	"api/jobs-list-request.v1.json":        {limits.ListJobsRequest{}, "Body of admin.jobs.list", nil},
	"api/jobs-list.v1.json":                {limits.JobList{}, "Reply of admin.jobs.list", nil},
	"api/jobs-run-request.v1.json":         {limits.RunJobRequest{}, "Body of admin.jobs.run", refineJob},
	"api/jobs-run.v1.json":                 {limits.RunJobReply{}, "Reply of admin.jobs.run", nil},
	"api/jobs-history-request.v1.json":     {limits.JobHistoryRequest{}, "Body of admin.jobs.history", refineJob},
	"api/jobs-history.v1.json":             {limits.JobHistory{}, "Reply of admin.jobs.history", nil},
	"api/alerts-list-request.v1.json":      {limits.ListAlertsRequest{}, "Body of admin.alerts.list", refineAlerts},
	"api/alerts-list.v1.json":              {limits.AlertList{}, "Reply of admin.alerts.list", nil},
	"api/alerts-show-request.v1.json":      {limits.ShowAlertRequest{}, "Body of admin.alerts.show", nil},
	"api/alerts-show.v1.json":              {limits.AlertDetails{}, "Reply of admin.alerts.show", nil},
	"api/alerts-silence-request.v1.json":   {limits.SilenceRequest{}, "Body of admin.alerts.silence", refineAlerts},
	"api/silence.v1.json":                  {limits.SilenceReply{}, "Reply of admin.alerts.silence and admin.alerts.unsilence", nil},
	"api/alerts-unsilence-request.v1.json": {limits.UnsilenceRequest{}, "Body of admin.alerts.unsilence", nil},
	"api/alerts-silences-request.v1.json":  {limits.ListSilencesRequest{}, "Body of admin.alerts.silences", refineSilences},
	"api/alerts-silences.v1.json":          {limits.SilenceList{}, "Reply of admin.alerts.silences", nil},
	"api/alerts-dead-request.v1.json":      {limits.DeadRequest{}, "Body of admin.alerts.dead", refineDead},
	"api/alerts-dead.v1.json":              {limits.DeadLetters{}, "Reply of admin.alerts.dead", nil},
	"api/alerts-replay-request.v1.json":    {limits.ReplayRequest{}, "Body of admin.alerts.replay", refineReplay},
	"api/alerts-replay.v1.json":            {limits.ReplayReply{}, "Reply of admin.alerts.replay", nil},
	"api/alerts-test-request.v1.json":      {limits.TestAlertRequest{}, "Body of admin.alerts.test", refineAlerts},
	"api/alerts-test.v1.json":              {limits.TestAlertReply{}, "Reply of admin.alerts.test", nil},
	"api/alerts-channels-request.v1.json":  {limits.ListChannelsRequest{}, "Body of admin.alerts.channels", nil},
	"api/alerts-channels.v1.json":          {limits.ChannelList{}, "Reply of admin.alerts.channels", nil},
	"events/alerts.raised.v1.json":         {limits.AlertRaised{}, "Data of an alerts.raised event", refineEvent},
	"events/alerts.resolved.v1.json":       {limits.AlertResolved{}, "Data of an alerts.resolved event", refineEvent},
	"events/alerts.digest.v1.json":         {limits.AlertDigest{}, "Data of an alerts.digest event", nil},
	"events/alerts.test.v1.json":           {limits.AlertTest{}, "Data of an alerts.test event", nil},
	"api/error.v1.json":                    {limits.ErrorBody{}, "An answer that is not a decision", refineError},
	"events/limits.warning.v1.json":        {limits.Warning{}, "Data of a limits.warning event", nil},
	"events/limits.exceeded.v1.json":       {limits.Exceeded{}, "Data of a limits.exceeded event", nil},
	"events/limits.report.v1.json":         {limits.Report{}, "Data of a limits.report event", refineTop},
	"api/policies-request.v1.json":         {limits.PoliciesRequest{}, "Body of admin.policies", refinePolicies},
	"api/policies.v1.json":                 {limits.Policies{}, "Reply of admin.policies", nil},
}

// TestSchemasAreUpToDate compares every schema with its type.
func TestSchemasAreUpToDate(t *testing.T) {
	comments := rootComments(t)
	for name, d := range definitions {
		want := generate(t, comments, name)
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := fs.ReadFile(schemas.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s does not match the type %T; run go generate ./schemas", name, d.value)
		}
	}
}

// TestEverySchemaHasType: there is no schema without a type.
func TestEverySchemaHasType(t *testing.T) {
	files, err := fs.Glob(schemas.FS, "*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	if want := slices.Sorted(maps.Keys(definitions)); !slices.Equal(files, want) {
		t.Errorf("files %v, definitions %v", files, want)
	}
}

// TestAsyncAPIRefersToSchemas compares the document with the schema files and the subjects.
func TestAsyncAPIRefersToSchemas(t *testing.T) {
	doc, err := fs.ReadFile(schemas.FS, "asyncapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name := range definitions {
		if !strings.Contains(string(doc), "'./"+name+"'") {
			t.Errorf("asyncapi.yaml does not refer to %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`'\./([^']+)'`).FindAllStringSubmatch(string(doc), -1) {
		if _, err := fs.Stat(schemas.FS, m[1]); err != nil {
			t.Errorf("asyncapi.yaml refers to %s, which is not there", m[1])
		}
	}
	for _, subject := range []string{limits.SubjectConsume, limits.SubjectCheck, limits.SubjectRecord, limits.SubjectRefund,
		limits.SubjectStatus, limits.SubjectList, limits.SubjectReset, limits.SubjectSettle, limits.SubjectUsage, limits.SubjectTop,
		limits.SubjectUsageReport, limits.EventWarning, limits.EventExceeded, limits.EventReport,
		limits.SubjectVerify, limits.SubjectKeysCreate, limits.SubjectKeysList, limits.SubjectKeysRevoke, limits.SubjectKeysExpire,
		limits.SubjectOverridesSet, limits.SubjectOverridesDelete, limits.SubjectOverridesList, limits.SubjectPolicies,
		limits.SubjectJobsList, limits.SubjectJobsRun, limits.SubjectJobsHistory,
		limits.SubjectAlertsList, limits.SubjectAlertsShow, limits.SubjectAlertsSilence, limits.SubjectAlertsUnsilence,
		limits.SubjectAlertsSilences, limits.SubjectAlertsDead, limits.SubjectAlertsReplay, limits.SubjectAlertsTest,
		limits.SubjectAlertsChannels, limits.EventAlertRaised, limits.EventAlertResolved, limits.EventAlertDigest,
		limits.EventAlertTest} {
		if !strings.Contains(string(doc), "address: "+subject+"\n") {
			t.Errorf("asyncapi.yaml has no channel %s", subject)
		}
	}
}

func generate(t *testing.T, comments map[string]string, name string) []byte {
	t.Helper()
	d := definitions[name]
	request := strings.Contains(name, "request") || name == "api/log-entry.v1.json"
	r := jsonschema.Reflector{Anonymous: true, CommentMap: comments, ExpandedStruct: true,
		// Replies and events may gain fields within a version; requests are strict.
		AllowAdditionalProperties: !request}
	s := r.Reflect(d.value)
	s.Title = d.title
	for _, def := range append([]*jsonschema.Schema{s}, slices.Collect(each(s.Definitions))...) {
		bound(def, request)
	}
	if d.refine != nil {
		d.refine(s)
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

func each(defs jsonschema.Definitions) func(func(*jsonschema.Schema) bool) {
	return func(yield func(*jsonschema.Schema) bool) {
		for _, s := range defs {
			if !yield(s) {
				return
			}
		}
	}
}

// bound adds the bounds of the wire contract to the fields of a schema.
func bound(s *jsonschema.Schema, request bool) {
	if s.Properties == nil {
		return
	}
	one := uint64(1)
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		f := p.Value
		f.Description = sentence(f.Description)
		switch p.Key {
		case "algorithm":
			f.Enum = []any{"sliding_window", "fixed_window", "token_bucket"}
		case "anchor":
			f.Enum = []any{"aligned", "first_use"}
		case "consistency":
			f.Enum = []any{"exact", "leased"}
		case "limit", "cost":
			f.Minimum = "1"
		case "burst", "remaining", "threshold", "used", "reset", "retryAfter", "denied":
			if f.Type == "integer" { // in a report some of them are lists
				f.Minimum = "0"
			}
		}
		if !request {
			if _, reply := s.Properties.Get("blockedBy"); reply && p.Key == "limit" {
				// 0 in the reply to a request that no policy matched.
				f.Minimum = "0"
			}
			continue
		}
		switch p.Key {
		case "limit", "cost", "burst":
			f.Maximum = "1000000000"
		case "key":
			text(f, 1, limits.MaxKeyBytes)
		case "name", "policy", "tier":
			text(f, 1, limits.MaxNameBytes)
		case "prefix":
			text(f, 0, limits.MaxKeyBytes)
		case "id":
			text(f, 1, limits.MaxIDBytes)
		case "timezone":
			f.MinLength = &one
		case "attributes":
			f.PropertyNames = &jsonschema.Schema{}
			text(f.PropertyNames, 1, limits.MaxNameBytes)
			text(f.AdditionalProperties, 0, limits.MaxAttributeBytes)
		case "window":
			f.Pattern = "^([1-9][0-9]*(ms|s|m|h|d|w)|minute|hour|day|week|month)$"
		}
	}
}

// text bounds a string of printable characters. The contract counts bytes and a schema counts characters, and not only control
// characters are unprintable, so the schema is less strict.
func text(s *jsonschema.Schema, min, max uint64) {
	s.MinLength, s.MaxLength, s.Pattern = nil, &max, `^[^\x00-\x1f\x7f]*$`
	if min > 0 {
		s.MinLength = &min
	}
}

// form is one of several forms of a body: its required fields, and schemas of its fields.
func form(title string, needs []string, fields map[string]*jsonschema.Schema) *jsonschema.Schema {
	s := &jsonschema.Schema{Title: title, Required: needs, Properties: jsonschema.NewProperties()}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		s.Properties.Set(name, fields[name])
	}
	return s
}

// The schemas of a field in a form: left out, false or left out, true or left out.
var left, no, yes = jsonschema.FalseSchema, &jsonschema.Schema{Const: false}, &jsonschema.Schema{Const: true}

// refineReset adds the three ways to select counters.
func refineReset(s *jsonschema.Schema) {
	one, none := uint64(1), uint64(0)
	s.OneOf = []*jsonschema.Schema{
		form("one key", []string{"key"}, map[string]*jsonschema.Schema{"prefix": left, "all": no}),
		form("a prefix", []string{"prefix"}, map[string]*jsonschema.Schema{"key": left, "prefix": {MinLength: &one}, "all": no}),
		form("every key", []string{"all"}, map[string]*jsonschema.Schema{"key": left, "prefix": {MaxLength: &none}, "all": yes}),
	}
}

// refineRequest adds the three forms of a request.
func refineRequest(s *jsonschema.Schema) {
	items, attributes := uint64(limits.MaxLimits), uint64(32)
	one := uint64(1)
	get := func(name string) *jsonschema.Schema { f, _ := s.Properties.Get(name); return f }
	get("limits").MinItems, get("limits").MaxItems = &one, &items
	get("attributes").MaxProperties = &attributes
	spec := s.Definitions["LimitSpec"]
	spec.Required = []string{"key", "limit", "window"}
	agree(s)
	agree(spec)
	inline := []string{"key", "limit", "window", "algorithm", "burst", "name", "timezone", "anchor", "consistency"}
	policy := []string{"policy", "attributes", "tier"}
	s.OneOf = []*jsonschema.Schema{
		{Title: "one limit", Required: spec.Required, Not: anyOf(append([]string{"limits"}, policy...))},
		{Title: "several limits", Required: []string{"limits"}, Not: anyOf(append(slices.Clone(inline), policy...))},
		{Title: "a policy", AnyOf: required("policy", "attributes"), Not: anyOf(append([]string{"limits"}, inline...))},
	}
}

// refineStatusRequest adds the two forms of a question for status.
func refineStatusRequest(s *jsonschema.Schema) {
	attributes, _ := s.Properties.Get("attributes")
	most := uint64(limits.MaxAttributes)
	attributes.MaxProperties = &most
	s.OneOf = []*jsonschema.Schema{
		{Title: "a key", Required: []string{"key"}, Not: anyOf([]string{"policy", "attributes", "tier"})},
		{Title: "a policy", AnyOf: required("policy", "attributes"), Not: anyOf([]string{"key"})},
	}
}

// agree says which fields of a limit can be combined.
func agree(s *jsonschema.Schema) {
	calendar := &jsonschema.Schema{Enum: []any{"minute", "hour", "day", "week", "month"}}
	is := func(field string, v any) *jsonschema.Schema {
		return form("", []string{field}, map[string]*jsonschema.Schema{field: {Const: v}})
	}
	either := func(some ...*jsonschema.Schema) *jsonschema.Schema { return &jsonschema.Schema{AnyOf: some} }
	period := form("", nil, map[string]*jsonschema.Schema{"window": calendar})
	s.DependentSchemas = map[string]*jsonschema.Schema{
		"algorithm": either(is("algorithm", "fixed_window"), form("", nil, map[string]*jsonschema.Schema{"window": {Not: calendar}})),
		"burst":     either(is("burst", 0), is("algorithm", "token_bucket")),
		"timezone":  period,
		"anchor": either(is("anchor", "aligned"), is("algorithm", "fixed_window"),
			form("", nil, map[string]*jsonschema.Schema{"window": calendar, "algorithm": left})),
	}
}

func anyOf(fields []string) *jsonschema.Schema { return &jsonschema.Schema{AnyOf: required(fields...)} }

func required(fields ...string) (out []*jsonschema.Schema) {
	for _, f := range fields {
		out = append(out, &jsonschema.Schema{Required: []string{f}})
	}
	return out
}

func refineList(s *jsonschema.Schema) {
	f, _ := s.Properties.Get("max")
	f.Minimum, f.Maximum = "1", "1000"
}

// refineSettle allows a cost of 0.
func refineSettle(s *jsonschema.Schema) {
	f, _ := s.Properties.Get("cost")
	f.Minimum = "0"
}

// refineTop allows rows with a cost of 0, whose requests were all denied.
func refineTop(s *jsonschema.Schema) {
	f, _ := s.Definitions["TopRow"].Properties.Get("cost")
	f.Minimum = "0"
}

// refineAttributes bounds the attributes of an API key, or of a request with one.
func refineAttributes(most uint64) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) {
		attributes, _ := s.Properties.Get("attributes")
		attributes.MaxProperties = &most
		if user, ok := s.Properties.Get("user"); ok {
			text(user, 1, limits.MaxAttributeBytes)
		}
		if expires, ok := s.Properties.Get("expiresAt"); ok {
			expires.Minimum, expires.Maximum = "1", maxTime
			attributes.PropertyNames.Not = &jsonschema.Schema{Enum: []any{"user", "key", "tier"}}
		}
	}
}

// refineKeyID replaces the bounds of an idempotency key.
func refineKeyID(s *jsonschema.Schema) {
	id, _ := s.Properties.Get("id")
	id.MinLength, id.MaxLength, id.Pattern = nil, nil, "^[0-9A-Za-z]{8}$"
	if expires, ok := s.Properties.Get("expiresAt"); ok {
		expires.Minimum, expires.Maximum = "0", maxTime
	}
}

func refineSubject(s *jsonschema.Schema) {
	subject, _ := s.Properties.Get("subject")
	text(subject, 1, limits.MaxKeyBytes)
}

// refineOverride requires that an override changes something, or lifts the limit.
func refineOverride(s *jsonschema.Schema) {
	refineSubject(s)
	get := func(name string) *jsonschema.Schema { f, _ := s.Properties.Get(name); return f }
	text(get("reason"), 1, limits.MaxReasonBytes)
	text(get("by"), 1, limits.MaxNameBytes)
	get("expiresAt").Minimum, get("expiresAt").Maximum = "1", maxTime
	numbers := form("other numbers", nil, map[string]*jsonschema.Schema{"unlimited": no})
	numbers.AnyOf = required("limit", "window", "burst")
	s.OneOf = []*jsonschema.Schema{numbers,
		form("no limit", []string{"unlimited"}, map[string]*jsonschema.Schema{"unlimited": yes, "limit": left, "window": left, "burst": left})}
}

// refineListOverrides allows an empty policy, for all policies.
func refineListOverrides(s *jsonschema.Schema) {
	refineList(s)
	policy, _ := s.Properties.Get("policy")
	text(policy, 0, limits.MaxNameBytes)
}

// refineListKeys bounds the fields that select API keys.
func refineListKeys(s *jsonschema.Schema) {
	refineList(s)
	for name, most := range map[string]uint64{"user": limits.MaxAttributeBytes, "prefix": limits.MaxNameBytes, "after": limits.MaxNameBytes} {
		f, _ := s.Properties.Get(name)
		text(f, 0, most)
	}
}

func refineJob(s *jsonschema.Schema) {
	job, _ := s.Properties.Get("job")
	text(job, 1, limits.MaxNameBytes)
	if f, ok := s.Properties.Get("outcome"); ok {
		f.Enum = []any{"running", "done", "failed", "timeout", "canceled", "skipped", "lost"}
	}
	if f, ok := s.Properties.Get("max"); ok {
		f.Minimum, f.Maximum = "1", json.Number(strconv.Itoa(limits.MaxJobRuns))
	}
}

func refinePolicies(s *jsonschema.Schema) {
	f, _ := s.Properties.Get("max")
	f.Minimum, f.Maximum = "1", "100"
	after, _ := s.Properties.Get("after")
	text(after, 0, limits.MaxNameBytes)
}

func refineError(s *jsonschema.Schema) {
	s.Description = "It is sent with the headers Nats-Service-Error and Nats-Service-Error-Code."
}

// rootComments reads the doc comments of the module root, and of no other package.
func rootComments(t *testing.T) map[string]string { return commentsOf(t, "..", module) }

// commentsOf reads the doc comments of one package.
func commentsOf(t *testing.T, folder, path string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(folder + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	// The reflector reads a folder recursively, relative to the working folder.
	dir := t.TempDir()
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	var r jsonschema.Reflector
	if err := r.AddGoComments(path, ".", jsonschema.WithFullComment()); err != nil {
		t.Fatal(err)
	}
	t.Chdir(here)
	comments := map[string]string{}
	for k, v := range r.CommentMap {
		comments[k] = sentence(v)
	}
	return comments
}

var docLink = regexp.MustCompile(`\[\*?([A-Z][\w.]*)\]`)

// sentence turns a Go comment into a description, without links and line breaks.
func sentence(s string) string {
	return strings.Join(strings.Fields(docLink.ReplaceAllString(s, "$1")), " ")
}
