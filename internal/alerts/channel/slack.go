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

// What may follow an @ that a receiver takes for a mention, and what some receivers take for one even within a word.
// anyName matches more than a list of names, because receivers differ in where a name ends: for Mattermost @here_ is @here,
// and a name may begin with a digit.
var anyName, everybody = regexp.MustCompile(`^[\pL\pN._-]`), regexp.MustCompile(`^(?i:all|channel|everyone|here)`)

// slackEscape escapes a text so that it is shown as it is.
func slackEscape(text string) string { return mentionNobody(slackEscapes.Replace(text)) }

// mentionNobody puts a zero-width space after each @ that may begin a mention. An @ after a letter or a digit of ASCII, which
// alone Mattermost takes for part of a word, belongs to a mail address, which is left alone so that it can be copied.
func mentionNobody(text string) string {
	var out strings.Builder
	word := false // the byte before is a letter or a digit of ASCII
	for i := range len(text) {
		c := text[i]
		out.WriteByte(c)
		if rest := text[i+1:]; c == '@' && (!word && anyName.MatchString(rest) || everybody.MatchString(rest)) {
			out.WriteString("\u200b")
		}
		word = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}
	return out.String()
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
