package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/kinds"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// locating is the command locate with its flags.
type locating struct {
	app   *app
	out   *output
	ring  string
	owner string
	next  int32
	// labels are those of the object that determines the key.
	labels map[string]string

	mapper    meta.RESTMapper
	namespace string
}

func (a *app) locate() *cobra.Command {
	l := &locating{app: a}
	cmd := &cobra.Command{
		Use:   "locate (TYPE/NAME... | TYPE NAME...) [flags]",
		Short: "Show to which shard an object belongs",
		Long: `Show to which shard an object belongs, and which shards would be next if that shard failed.

The object does not have to exist: the answer follows from its name, unless a label is the key of its resource. Then, the server reads
the object, or --labels names the labels that it would have. The answer is where the object belongs, not the label that
it has now; explain shows both. COVERED is unknown if it depends on labels of the namespace whether the ring shards the object.
An object of a controlled resource is at the shard of its owner: name the owner with --owner.

TYPE is a type as in kubectl: plural, singular, short name, or kind, with the group after a dot if necessary. Without a
kubeconfig, it must be the plural name or the kind, with its group: websites.example.org.

If a query fails, the others are still answered. To ask about very many objects, call LocateAll of the API.

-o json prints one LocateResponse per object.`,
		Example: `  kubectl ring locate websites/blog -n team-a
  kubectl ring locate website blog shop -o wide
  kubectl ring locate secret/blog-tls --owner website/blog
  kubectl ring locate website/next -n team-a --labels example.org/tenant=acme
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
	flags.Int32Var(&l.next, "next", 2, "`number` of next shards to show, which would own the object if the shards "+
		"before them failed; 0 to 10")
	complete(cmd, "ring", a.completeRing)
	l.out = a.addOutput(cmd, asWide, asJSON, asYAML, asName)

	return cmd
}

func (l *locating) run(ctx context.Context, args []string) error {
	objects, err := kinds.Parse(args)
	if err != nil {
		return err
	}

	if l.namespace, err = l.app.namespace(); err != nil {
		return err
	}

	if l.mapper, err = l.app.mapper(); err != nil {
		return err
	}

	requests, failed := make([]*pb.LocateRequest, 0, len(objects)), false

	for _, object := range objects {
		req, err := l.question(object)

		switch {
		case err == nil:
			requests = append(requests, req)
		case len(objects) == 1:
			return err
		default:
			failure.Print(l.app.Err, failure.In(object.Type+"/"+object.Name, err))

			failed = true
		}
	}

	if len(requests) == 0 {
		return errPrinted
	}

	return l.app.ask(ctx, func(s *asker) error {
		table := l.table()

		for _, req := range requests {
			err := l.one(ctx, s, table, req)

			switch {
			case err == nil:
			case len(objects) == 1:
				return err
			case endsAll(err):
				if failed := l.flush(table); failed != nil {
					return failed
				}

				return err
			default:
				failure.Print(l.app.Err, failure.In(label(req.GetObject()), failure.Of(err, s.where())))

				failed = true
			}
		}

		if err := l.flush(table); err != nil || !failed {
			return err
		}

		return errPrinted
	})
}

// question returns the request about an object.
func (l *locating) question(object kinds.Object) (*pb.LocateRequest, error) {
	kind, err := kinds.Resolve(l.mapper, object.Type)
	if err != nil {
		return nil, err
	}

	req := &pb.LocateRequest{
		Ring: l.ring, Object: kind.Reference(l.namespace, object.Name), NextShards: &l.next, Labels: l.labels,
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

// one asks about an object, and prints the answer or adds it to the table.
func (l *locating) one(ctx context.Context, s *asker, table *render.Table, req *pb.LocateRequest) error {
	res, err := s.Locate(ctx, req)
	if err != nil {
		return err
	}

	if l.out.forProgram() {
		return l.out.document(res)
	}

	l.rows(table, label(req.GetObject()), res)

	return nil
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

func (l *locating) flush(table *render.Table) error {
	if l.out.forProgram() || l.out.format == asName {
		return nil
	}

	return table.Flush()
}
