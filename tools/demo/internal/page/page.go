// Package page keeps the output of commands on a Markdown page up to date: it runs the commands, in the order of the
// page, in one shell, and records their output.
//
// A command is a line that begins with "$ " in a fenced block of the language console. It continues on the next line
// while its line ends with a backslash. What follows, up to the next command or the end of the block, is its output:
// standard output and error, as on a terminal. Values that differ between runs are normalized; see [Stable].
package page

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	fence  = "```"
	opens  = fence + "console"
	prompt = "$ "
	// again is how long to wait before a command is run again that has not printed what the page says.
	again = 200 * time.Millisecond
)

// Command is a command of a page.
type Command struct {
	// Line is the number of its line, from 1.
	Line int
	// Text is what the shell gets: one line, or several lines that end with a backslash, except the last one. It does not
	// end with a line feed.
	Text string
	// Output is what the command prints according to the page. It is empty or ends with a line feed.
	Output string

	before string // the page between the previous command and this one
}

// Page is a Markdown page. Parse creates it. It is not safe for concurrent use.
type Page struct {
	// Commands are the commands in their order. A change of a command changes the page.
	Commands []*Command

	end string // the page after the last command
}

// Parse reads a page. It returns an error if a block is not closed or does not begin with a command.
func Parse(text string) (*Page, error) {
	p := &Page{}

	var (
		inBlock    bool
		current    *Command // of the block; its output is being read
		unfinished bool     // its text is
	)

	number := 0
	for line := range strings.Lines(text) {
		number++

		bare := strings.TrimRight(line, "\r\n")
		switch {
		case !inBlock:
			inBlock = bare == opens
			p.end += line
		case unfinished:
			current.Text += "\n" + bare
			unfinished = strings.HasSuffix(bare, `\`)
		case bare == fence:
			inBlock, current = false, nil
			p.end += line
		case strings.HasPrefix(bare, prompt):
			current = &Command{Line: number, Text: strings.TrimPrefix(bare, prompt), before: p.end}
			unfinished = strings.HasSuffix(bare, `\`)

			p.Commands, p.end = append(p.Commands, current), ""
		case current == nil:
			return nil, fmt.Errorf("line %d: a console block must begin with a command: a line that begins with %q",
				number, prompt)
		default:
			current.Output += bare + "\n"
		}
	}

	if inBlock {
		return nil, errors.New("the last console block is not closed")
	}

	return p, nil
}

// String returns the page as Markdown.
func (p *Page) String() string {
	var b strings.Builder
	for _, c := range p.Commands {
		b.WriteString(c.before + prompt + c.Text + "\n" + c.Output)
	}

	return b.String() + p.end
}

// Update runs every command and records its output, unless that differs only as [Stable] allows. It runs a command that
// has not printed what the page says again until patience is over, because the system may take a moment on a busy
// machine; after a command that differs, it runs each only once. The first result describes each difference.
func (p *Page) Update(ctx context.Context, sh *Shell, patience time.Duration) (differ []string, err error) {
	for _, c := range p.Commands {
		var (
			output string
			failed error
		)

		// A command that differs to the end is no error.
		_ = wait.PollUntilContextTimeout(ctx, again, patience, true, func(context.Context) (bool, error) {
			output, failed = sh.Run(ctx, c.Text)
			return same(output, c.Output), failed
		})

		if failed != nil {
			return differ, fmt.Errorf("line %d: %w", c.Line, failed)
		}

		if same(output, c.Output) {
			continue
		}

		differ, patience = append(differ, fmt.Sprintf("line %d: %s%s\nprints:\n%sand not what the page says:\n%s",
			c.Line, prompt, c.Text, Stable(output), c.Output)), 0

		c.Output = Stable(output)
		for line := range strings.Lines(c.Output) {
			if strings.HasPrefix(line, prompt) || line == fence+"\n" {
				return differ, fmt.Errorf("line %d: the output has a line that the page cannot show: %q", c.Line, line)
			}
		}
	}

	return differ, nil
}

// Shell is a POSIX shell that runs commands one after the other, so that a command finds the variables of earlier ones.
// It is not safe for concurrent use.
type Shell struct {
	cmd    *exec.Cmd
	input  io.WriteCloser
	done   *bufio.Reader // a line after each command
	script string        // file that the shell reads a command from
	output string        // file that it prints to
}

// NewShell starts a shell. Its files are in dir, which must exist and be empty; its commands run in a new directory in
// there. env is its whole environment, each entry as in NAME=value. Close ends it.
func NewShell(dir string, env []string) (*Shell, error) {
	s := &Shell{cmd: exec.Command("sh"), script: filepath.Join(dir, "command"), output: filepath.Join(dir, "output")}
	s.cmd.Dir = filepath.Join(dir, "work")
	s.cmd.Env = slices.Concat(env, []string{"PAGE_COMMAND=" + s.script, "PAGE_OUTPUT=" + s.output})
	// What it leaves running in the background is in its group, and ends with it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	input, errOfInput := s.cmd.StdinPipe()
	done, errOfOutput := s.cmd.StdoutPipe()

	if err := errors.Join(errOfInput, errOfOutput, os.Mkdir(s.cmd.Dir, 0o700), s.cmd.Start()); err != nil {
		return nil, fmt.Errorf("start a shell: %w", err)
	}

	s.input, s.done = input, bufio.NewReader(done)

	return s, nil
}

// Run runs a command and returns its standard output and error. It ignores the exit code. It returns an error if the
// shell ends, for example because of a syntax error, or if ctx ends before the command does; the shell cannot be used
// then.
func (s *Shell) Run(ctx context.Context, command string) (string, error) {
	if err := os.WriteFile(s.script, []byte(command+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("save the command: %w", err)
	}

	defer context.AfterFunc(ctx, s.kill)()

	_, err := io.WriteString(s.input, `. "$PAGE_COMMAND" </dev/null >"$PAGE_OUTPUT" 2>&1; echo`+"\n")
	if err == nil {
		_, err = s.done.ReadString('\n')
	}

	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %w", command, context.Cause(ctx))
	}

	output, reading := os.ReadFile(s.output)
	if err != nil {
		return "", fmt.Errorf("the shell has ended at the command %s: %w\n%s", command, err, output)
	}

	if reading != nil {
		return "", fmt.Errorf("read the output of a command: %w", reading)
	}

	return string(output), nil
}

// kill ends the shell with everything that it has started.
func (s *Shell) kill() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // nothing may be left
}

// Close ends the shell and everything that its commands have left running in the background.
func (s *Shell) Close() error {
	s.kill()

	err := s.cmd.Wait() // also closes the pipes
	if _, killed := errors.AsType[*exec.ExitError](err); err != nil && !killed {
		return fmt.Errorf("end the shell: %w", err)
	}

	return nil
}

// rule is a kind of text that differs between runs, and its replacement on a page.
type rule struct {
	find    *regexp.Regexp
	replace string
}

// rules apply in this order.
var rules = []rule{
	// The UID of an object.
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "01234567-89ab-cdef-0123-456789abcdef"},
	// A time.
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "2026-01-02T15:04:05Z"},
	// A time at the beginning of a line.
	{regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\b`), "15:04:05"},
	// An age, in three formats.
	{regexp.MustCompile(`\b(at least )?\d+[smhd](\d+[smh])? ago\b`), "1s ago"},
	{regexp.MustCompile(`\b(at least )?\d+ (s|min|h|d)( \d+ (s|min|h))? ago\b`), "1 s ago"},
	{regexp.MustCompile(`"renewalAge": "[^"]*"`), `"renewalAge": "1s"`},
	// The token of the next page, which depends on other events in the cluster.
	{regexp.MustCompile(`"nextPageToken": "[^"]+"`), `"nextPageToken": "b3BhcXVl"`},
	// An age in the last column of a table.
	{regexp.MustCompile(`(?m)(\S {3,})\d+[smhd](\d+[smh])?$`), "${1}1s"},
	// An age in a sentence of an explanation.
	{regexp.MustCompile(`\b\d+ (s|min|h|d)( \d+ (s|min|h))? (old|now)\b`), "1 s $4"},
	// The port of a process.
	{regexp.MustCompile(`\b127\.0\.0\.1:\d+\b`), "127.0.0.1:8090"},
}

// Stable normalizes what differs between runs in the output of a command: UIDs, times, ages, page tokens, and ports of
// 127.0.0.1. The result ends with a line feed, unless it is empty.
func Stable(output string) string {
	for _, rule := range rules {
		output = rule.find.ReplaceAllString(output, rule.replace)
	}

	if output != "" && !strings.HasSuffix(output, "\n") {
		output += "\n"
	}

	return output
}

// spaces are the gap between columns of a table. Their number depends on the length of the ages.
var spaces = regexp.MustCompile(`[ \t]+`)

// same reports whether two outputs differ only in normalized text and spaces.
func same(a, b string) bool {
	return spaces.ReplaceAllString(Stable(a), " ") == spaces.ReplaceAllString(Stable(b), " ")
}
