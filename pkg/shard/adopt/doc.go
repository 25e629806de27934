// Package adopt shards controllers that know nothing of shards. Nearly every operator hides its reconcilers behind SetupWithManager(mgr): pass it the
// manager of [NewManager], and leave its code as it is.
//
//	s, err := shard.Claim(ctx, config, shard.Options{Ring: "jobset", Slots: 3})
//	mgr, err := adopt.NewManager(s, config, options, adopt.Options{Controllers: map[string]adopt.Placement{
//		"jobset": adopt.Sharded(&jobset.JobSet{}, &batchv1.Job{}, &corev1.Service{}),
//	}})
//	err = controllers.NewJobSetReconciler(mgr.GetClient(), …).SetupWithManager(mgr) // as before
//	err = mgr.Start(s.UntilDrained(ctx))
//
// # What it promises
//
//	A1  A controller that is declared as [Sharded] makes the promises of [shard.Shard.Reconciler]. Drains reach it whatever its event filters are.
//	A2  No controller is added that is not declared, and no other runnable that would run in every replica. The error names it. Which
//	    controllers an operator has is visible in one place.
//	A3  A reconcile that reaches a sharded kind through the manager's clients or caches, but whose controller was not added to the
//	    manager, gets an error that names it ([ErrNotAdopted]), at its first call. (controller.NewUnmanaged makes such controllers.)
//	A4  A controller that is declared as [OneReplica] runs in one replica, which an election of its own decides. If that election is lost and a
//	    reconcile does not stop, the process ends (shard.Options.Exit). The controller gets an error if it reads a sharded kind from the
//	    cache, because the cache of a replica contains only the objects of its shard.
//	A5  If the options have a leader election, the shards replace it without a moment in which its leader and a shard work at the same time;
//	    see [github.com/clusterring/clusterring/pkg/shard/former]. The same holds for the way back.
//
// # What stays as it is
//
// Webhooks, indexers, and runnables that need no leader election run in every replica, as always. What they read from the cache are the objects of
// this shard; use GetAPIReader to read others.
//
// # controller-runtime
//
// controller-runtime has no way to see the reconciler of a controller that is added to a manager, so the package reads two fields of its type by
// reflection. If a version of controller-runtime has other fields, adding a controller fails with [ErrUnknownController]. The versions that are
// tested are 0.22 to 0.25.
package adopt
