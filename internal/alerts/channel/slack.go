package channel

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/seed503877ad/limits/internal/alerts"
)

// slack posts to an incoming webhook of Slack, Mattermost or another chat with the same format.
type slack struct{ *target }

func (m *Maker) slack(spec *alerts.SlackSpec) (alerts.Channel, error) {
	t, err := m.target(spec.URL)
	return slack{t}, err
}

// maxSlackText is how many characters are sent; Slack advises 4000 at most.
const maxSlackText = 3000

// Send posts a message.
func (s slack) Send(ctx context.Context, m *alerts.Message) error {
	body, err := json.Marshal(struct {
		Text string `json:"text"`
	}{slackText(m)})
	if err != nil {
		return &alerts.Refusal{Err: fmt.Errorf("write the message as JSON: %w", err), Final: true}
	}
	answer, err := s.post(ctx, http.Header{}, body)
	if word := slackWord.Find(answer); err != nil && word != nil && !strings.Contains(s.url.String(), string(word)) {
		return annotated{err, string(word)}
	}
	return err
}

// slackWord is Slack's answer to a wrong request, such as channel_not_found. No other answer is shown in an error.
var slackWord = regexp.MustCompile(`^[a-z]+(_[a-z]+){1,5}$`)

// annotated is an error with a note. It unwraps, so that a refusal is still one.
type annotated struct {
	error
	note string
}

func (a annotated) Error() string { return a.error.Error() + ": " + a.note }
func (a annotated) Unwrap() error { return a.error }

func slackText(m *alerts.Message) string {
	return slackEscape(firstRunes(fmt.Sprintf("[%s] %s\n%s", m.Severity, m.Title, m.Text), maxSlackText))
}

// slackEscapes are the escapes that Slack requires. Without them <!channel> or <url|words> in a key would take effect. A
// zero-width space keeps [words](url) and ![words](url) from being a link and an image in a chat that shows Markdown.
var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "](", "]\u200b(")

// mention matches the beginning of anything that a receiver may take for a mention. It matches more than a list of names,
// because receivers differ in where a name ends: for Mattermost @here_ is @here, and a name may begin with a digit. An @
// after a letter or a digit of ASCII, which alone Mattermost takes for part of a word, belongs to a mail address, which is
// left alone so that it can be copied, except before the names that mean everybody: some receivers find those there too.
var mention = regexp.MustCompile(`(^|[^A-Za-z0-9])@([\pL\pN._-])|@((?i:all|channel|everyone|here))`)

// slackEscape escapes a text so that it is shown as it is. A zero-width space after an @ keeps it from being a mention.
func slackEscape(text string) string {
	return mention.ReplaceAllString(slackEscapes.Replace(text), "$1@\u200b$2$3")
}

// firstRunes cuts a text to n runes and an ellipsis.
func firstRunes(text string, n int) string {
	for i := range text {
		if n--; n < 0 {
			return text[:i] + "…"
		}
	}
	return text
}
