package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/kinds"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

const (
	// longestID is the maximum size of the id of a question, in bytes.
	longestID = 256
	// atOnce is the number of rows that are aligned and printed together.
	atOnce = 200
)

// locating is the command locate with its flags.
type locating struct {
	app   *app
	out   *output
	ring  string
	owner string
	file  string
	next  int32
	// labels are those of the object that determines the key.
	labels map[string]string

	mapper    meta.RESTMapper
	namespace string
}

func (a *app) locate() *cobra.Command {
	l := &locating{app: a}
	cmd := &cobra.Command{
		Use:   "locate (TYPE/NAME... | TYPE NAME... | -f FILE) [flags]",
		Short: "Show to which shard an object belongs",
		Long: `Show to which shard an object belongs, and which shards would be next if that shard failed.

The object does not have to exist: the answer follows from its name, unless a label is the key of its resource. Then, the server reads
the object, or --labels names the labels that it would have. The answer is where the object belongs, not the label that
it has now; explain shows both. COVERED is unknown if it depends on labels of the namespace whether the ring shards the object.
An object of a controlled resource is at the shard of its owner: name the owner with --owner.

TYPE is a type as in kubectl: plural, singular, short name, or kind, with the group after a dot if necessary. Without a
kubeconfig, it must be the plural name or the kind, with its group: websites.example.org.

With -f, each line of the file, or of standard input for "-", names one object: TYPE/NAME, optionally followed by a namespace
that overrides -n. Empty lines and lines that begin with # are ignored. All queries use one stream. If a query fails, the others
are still answered.

-o json prints one LocateResponse or, for several objects, one LocateAllResponse per line.`,
		Example: `  kubectl ring locate websites/blog -n team-a
  kubectl ring locate website blog shop -o wide
  kubectl ring locate secret/blog-tls --owner website/blog
  kubectl ring locate website/next -n team-a --labels example.org/tenant=acme
  kubectl ring locate -f objects.txt -o json
  kubectl get websites -A --no-headers -o custom-columns=N:.metadata.name,S:.metadata.namespace |
    sed 's,^,websites/,' | kubectl ring locate -f -
  kubectl ring locate websites.example.org/blog -n team-a --endpoint 127.0.0.1:8090 --plaintext`,
		ValidArgsFunction: a.completeType,
		RunE: func(cmd *cobra.Command, args []string) error {
			return l.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&l.ring, "ring", "", "`ring` to query; by default, every ring that shards the object")
	flags.StringVar(&l.owner, "owner", "", "`TYPE/NAME` of the object that controls the given objects")
	flags.StringToStringVar(&l.labels, "labels", nil,
		"`KEY=VALUE` labels of the objects, or of their owner, if a label is the key; by default, those of the object that "+
			"exists")
	flags.StringVarP(&l.file, "filename", "f", "", "`file` with one object per line, or - for standard input")
	flags.Int32Var(&l.next, "next", 2, "`number` of next shards to show, which would own the object if the shards "+
		"before them failed; 0 to 10")
	complete(cmd, "ring", a.completeRing)
	l.out = a.addOutput(cmd, asWide, asJSON, asYAML, asName)

	return cmd
}

func (l *locating) run(ctx context.Context, args []string) error {
	if (l.file == "") == (len(args) == 0) {
		return failure.New("see kubectl ring locate --help", "specify either objects or a file with -f")
	}

	var (
		objects []kinds.Object
		err     error
	)
	if l.file == "" {
		if objects, err = kinds.Parse(args); err != nil {
			return err
		}
	}

	if l.namespace, err = l.app.namespace(); err != nil {
		return err
	}

	if l.mapper, err = l.app.mapper(); err != nil {
		return err
	}

	if len(objects) == 1 {
		return l.one(ctx, objects[0])
	}

	input, closing, err := l.input(objects)
	if err != nil {
		return err
	}
	defer closing()

	return l.app.ask(ctx, func(s *asker) error { return l.many(ctx, s, input) })
}

// question returns the request about an object.
func (l *locating) question(object kinds.Object, namespace string) (*pb.LocateRequest, error) {
	kind, err := kinds.Resolve(l.mapper, object.Type)
	if err != nil {
		return nil, err
	}

	req := &pb.LocateRequest{
		Ring: l.ring, Object: kind.Reference(namespace, object.Name), NextShards: &l.next, Labels: l.labels,
	}
	if l.owner == "" {
		return req, nil
	}

	owner, err := kinds.ParseOne(l.owner)
	if err != nil {
		return nil, failure.In("--owner", err)
	}

	ownerKind, err := kinds.Resolve(l.mapper, owner.Type)
	if err != nil {
		return nil, failure.In("--owner", err)
	}

	req.Owner = ownerKind.Owner(owner.Name)

	return req, nil
}

// label formats an object for people.
func label(object *pb.ObjectReference) string {
	kind := object.GetResource() + object.GetKind()
	return namespaced(object.GetNamespace(), qualified(object.GetGroup(), kind)+"/"+object.GetName())
}

func (l *locating) one(ctx context.Context, object kinds.Object) error {
	req, err := l.question(object, l.namespace)
	if err != nil {
		return err
	}

	return l.app.ask(ctx, func(s *asker) error {
		res, err := s.Locate(ctx, req)
		if err != nil {
			return err
		}

		if l.out.forProgram() {
			return l.out.document(res)
		}

		table := l.table()
		l.rows(table, label(req.GetObject()), res)

		return l.flush(table)
	})
}

func (l *locating) table() *render.Table {
	return l.out.table([]string{"OBJECT", "RING", "SHARD", "NEXT", "ROLE", "COVERED"}, "KEY", "HASH", "PARTITION",
		"FINGERPRINT")
}

// rows adds an answer to the table, or prints the names of shards.
func (l *locating) rows(table *render.Table, object string, res *pb.LocateResponse) {
	for _, at := range res.GetLocations() {
		if l.out.format == asName {
			if at.GetShard() != "" {
				fmt.Fprintln(l.app.Out, shardName+at.GetShard())
			}

			continue
		}

		shard := render.Bold.In(at.GetShard())
		if at.GetShard() == "" {
			shard = render.Bad.In("none available")
		}

		row := []any{
			object, at.GetRing(), shard, strings.Join(at.GetNextShards(), ", "), roleWord(at.GetRole()),
			coverage(at.GetNamespaceCoverage()),
		}
		if l.out.wide() {
			row = append(row, keyText(at.GetPartitionKey()), at.GetHash(), at.GetPartition(), at.GetFingerprint())
		}
		table.Row(row...)
	}
}

// line is one of many questions, as it was written.
type line struct {
	object    kinds.Object
	namespace string // empty: that of -n
	err       error
}

// input returns the questions from the file, or else for the objects.
func (l *locating) input(objects []kinds.Object) (lines iter.Seq[line], closing func(), err error) {
	if l.file == "" {
		return func(yield func(line) bool) {
			for _, object := range objects {
				if !yield(line{object: object}) {
					return
				}
			}
		}, func() {}, nil
	}

	from, closing := l.app.In, func() {}
	if l.file != "-" {
		file, err := os.Open(l.file)
		if err != nil {
			return nil, nil, failure.New("name a file that you can read, or - for standard input", "--filename: %w", err)
		}

		from, closing = file, func() { _ = file.Close() } // it was only read
	}

	return func(yield func(line) bool) {
		scanner := bufio.NewScanner(from)

		number := 1
		for ; scanner.Scan(); number++ {
			text := strings.TrimSpace(scanner.Text())
			if text != "" && !strings.HasPrefix(text, "#") && !yield(parseLine(text, number)) {
				return
			}
		}

		if err := scanner.Err(); err != nil {
			yield(line{err: fmt.Errorf("read line %d: %w", number, err)})
		}
	}, closing, nil
}

func parseLine(text string, number int) line {
	fields := strings.Fields(text)
	if len(fields) > 2 {
		return line{err: fmt.Errorf("line %d: %q is not TYPE/NAME [NAMESPACE]", number, text)}
	}

	object, err := kinds.ParseOne(fields[0])
	if err != nil {
		return line{err: failure.In(fmt.Sprintf("line %d", number), err)}
	}

	l := line{object: object}
	if len(fields) == 2 {
		l.namespace = fields[1]
	}

	return l
}

// many sends all questions over one stream. Answers come in the order of the questions.
func (l *locating) many(ctx context.Context, s *asker, lines iter.Seq[line]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	stream, err := s.LocateAll(ctx)
	if err != nil {
		return err
	}

	failed := make(chan bool, 1)

	asked := make(chan string, 1<<10) // questions without an answer yet
	go func() {
		failed <- l.send(stream, lines, asked)
	}()

	bad, err := l.receive(stream, asked)
	if err != nil {
		return err
	}

	if bad || <-failed {
		return errPrinted
	}

	return nil
}

// send sends all questions. It prints those that it cannot send, and returns whether there were any.
func (l *locating) send(
	stream pb.DiagnosticsService_LocateAllClient, lines iter.Seq[line], asked chan<- string,
) (bad bool) {
	defer func() { _ = stream.CloseSend() }() // the receiver gets the error of the stream

	complain := func(err error) {
		failure.Print(l.app.Err, err)

		bad = true
	}
	for one := range lines {
		if one.err != nil {
			complain(one.err)
			continue
		}

		namespace := one.namespace
		if namespace == "" {
			namespace = l.namespace
		}

		req, err := l.question(one.object, namespace)
		if err != nil {
			complain(err)
			continue
		}

		name := label(req.GetObject())

		question := &pb.LocateAllRequest{Question: req}
		if len(name) <= longestID {
			question.Id = name
		}

		select {
		case asked <- name:
		case <-stream.Context().Done():
			return bad
		}

		if err := stream.Send(question); err != nil {
			return bad
		}
	}

	return bad
}

// receive prints the answers and the questions that failed. It returns whether any failed.
func (l *locating) receive(stream pb.DiagnosticsService_LocateAllClient, asked <-chan string) (bad bool, err error) {
	table := l.table()
	rows := 0

	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return bad, l.flush(table)
		}

		if err != nil {
			if failed := l.flush(table); failed != nil {
				return bad, errors.Join(failed, err)
			}

			return bad, err //nolint:wrapcheck // ask reads the status, and a joined error changes its message
		}

		name := <-asked

		if res.GetError() != nil {
			bad = true
		}

		switch {
		case l.out.forProgram():
			err = l.out.line(res)
		case res.GetError() != nil:
			failure.Print(l.app.Err, failureOf(name, res.GetError()))
		default:
			l.rows(table, name, res.GetAnswer())
			rows++
		}

		if err == nil && (rows == atOnce || l.app.InTerminal && l.file == "-") {
			rows, err = 0, l.flush(table)
		}

		if err != nil {
			return bad, err
		}
	}
}

func (l *locating) flush(table *render.Table) error {
	if l.out.forProgram() || l.out.format == asName {
		return nil
	}

	return table.Flush()
}

func failureOf(object string, e *pb.LocateError) error {
	where := codes.Code(e.GetCode()).String()
	if e.GetReason() != "" {
		where += " (" + e.GetReason() + ")"
	}

	return &failure.Error{
		What: object + ": " + e.GetMessage(), Details: e.GetViolations(), Where: "the server, which answered " + where,
		Do: failure.Advice(e.GetReason()),
	}
}
