//! One promise per test, generic over the store. `conformance!` lists them all; a promise that is
//! missing there is dead code, and the build says so.

pub(crate) mod sending;
pub(crate) mod idempotency;
pub(crate) mod claiming;
pub(crate) mod direct;
pub(crate) mod announcing;
pub(crate) mod settling;
pub(crate) mod fences;
pub(crate) mod leases;
pub(crate) mod suspects;
pub(crate) mod keys;
pub(crate) mod unreadable;
pub(crate) mod dead_letters;
pub(crate) mod redriving;
pub(crate) mod sweeping;
pub(crate) mod replaying;
pub(crate) mod replays_under_way;
pub(crate) mod retention;
pub(crate) mod backpressure;
pub(crate) mod pubsub;
pub(crate) mod endpoints;
pub(crate) mod circuits;
pub(crate) mod settings;
pub(crate) mod stories;
pub(crate) mod listing;
pub(crate) mod tokens;
pub(crate) mod figures;
pub(crate) mod event_log;
pub(crate) mod durability;
pub(crate) mod concurrency;

/// What a store promises that claims for a node of its own process while it inserts.
macro_rules! direct_claims {
    ($harness:ty) => {
        $crate::store::conformance::promises! { $harness;
            direct {
                a_message_sent_to_a_free_node_is_claimed_in_the_same_breath,
                a_keyed_message_waits_for_its_predecessor,
                a_refused_batch_gives_its_slots_back,
            }
        }
    };
}

/// One test for each promise that every store makes, for one harness.
macro_rules! conformance {
    ($harness:ty) => {
        $crate::store::conformance::promises! { $harness;
            sending {
                a_long_batch_keeps_every_message_whole_and_in_order,
                one_bad_message_late_in_a_long_batch_undoes_all_of_it,
                an_attempt_may_not_outlast_what_counts_as_stuck,
                a_message_is_kept_with_everything_it_was_given,
                an_unknown_endpoint_is_named,
                a_bad_priority_is_named_and_changes_nothing,
                each_limit_is_kept_to_the_byte_and_named_when_exceeded,
                the_longest_keys_work_everywhere,
                a_batch_may_be_full_but_not_fuller,
                a_batch_is_taken_in_its_order,
                one_bad_message_refuses_its_whole_batch,
                a_bad_message_option_is_named,
                a_time_may_be_as_late_as_the_calendar_of_nodes_goes,
                a_disabled_endpoint_refuses_and_a_paused_one_accepts,
                an_endpoint_that_is_gone_accepts_and_keeps,
                what_an_operator_disabled_stays_so_when_it_is_gone,
            }
            idempotency {
                the_same_key_and_payload_give_the_same_message,
                another_payload_or_content_type_is_a_conflict,
                a_key_belongs_to_one_endpoint,
                a_finished_message_frees_its_key,
                retention_reserves_a_key_after_completion,
                an_expired_holder_is_expired_first,
                a_running_holder_keeps_its_key_past_its_expiry,
                only_a_completed_message_reserves_its_key,
                a_batch_meets_its_own_keys,
                a_batch_says_which_message_has_a_key_of_another,
                a_redriven_message_lost_its_key,
            }
            claiming {
                priority_goes_before_due_time_before_id,
                a_probe_waits_too_when_the_receiver_asked_for_rest,
                a_message_that_dies_of_a_busy_receiver_holds_the_endpoint_all_the_same,
                nothing_is_claimed_before_its_schedule,
                nothing_is_claimed_past_its_expiry,
                what_expires_on_the_way_of_a_claim_is_told,
                expiry_is_applied_in_bounded_steps,
                what_has_not_expired_is_not_expired,
                an_attempt_counts_from_the_claim_on,
                room_is_respected_and_the_rest_is_announced,
                many_endpoints_are_served_at_once,
                two_nodes_never_claim_the_same_message,
                a_probe_is_the_due_message_with_the_fewest_attempts,
                a_probe_is_a_suspect_when_nothing_else_is_due,
                a_probe_that_finds_nothing_free_does_not_ask_again_at_once,
                an_open_circuit_costs_nothing,
                paused_and_disabled_endpoints_give_nothing,
                a_rate_limit_holds_over_all_nodes,
                a_rate_is_not_used_up_by_looking,
                a_receiver_that_asks_for_rest_holds_its_endpoint,
                only_a_node_that_joined_can_claim,
                only_a_pending_message_is_cancelled_or_rescheduled,
                who_is_rescheduled_to_the_past_is_due_now,
                nobody_is_rescheduled_past_its_expiry,
            }
            announcing {
                without_room_a_message_stays_pending_and_is_announced,
                a_message_never_overtakes_what_is_due_already,
                what_may_not_go_now_is_never_claimed_directly,
                nothing_is_claimed_directly_while_all_is_paused,
                a_node_that_went_away_without_listening_loses_nothing,
                what_another_process_sets_free_is_told_as_a_send_is,
                what_another_process_changes_is_told,
            }
            settling {
                a_delivered_message_is_completed_and_archived,
                a_retry_is_a_pending_message_that_is_due_later,
                a_dead_message_is_a_dead_letter_with_everything,
                each_reason_of_death_is_recorded,
                a_failure_past_the_expiry_is_archived_as_expired,
                what_expired_before_it_started_has_no_attempt,
                a_released_claim_consumes_no_attempt,
                one_settlement_does_not_touch_its_neighbours,
                deliveries_of_every_kind_are_settled_together,
                an_error_of_any_characters_is_recorded,
            }
            fences {
                a_late_failure_changes_nothing,
                a_settled_claim_cannot_be_settled_again,
                a_late_delivery_completes_a_waiting_message,
                a_late_delivery_lets_the_next_of_its_key_go,
                a_late_delivery_completes_an_unkeyed_message_at_once,
                a_late_delivery_of_a_keyed_message_waits_for_the_current_claim,
                a_noted_delivery_survives_a_forced_drop,
                what_is_acknowledged_after_a_forced_drop_is_completed_with_its_attempt,
                a_noted_delivery_outlives_the_loss_of_the_next_claim,
                a_released_claim_takes_no_fence_with_it,
            }
            leases {
                a_silent_node_loses_its_claims_after_its_lease,
                heartbeats_keep_a_lease,
                the_lease_is_as_long_as_its_setting,
                the_store_says_for_how_long_it_grants_a_lease,
                a_node_that_was_judged_is_told_so,
                lost_claims_are_told_until_they_are_settled,
                a_lost_claim_counts_as_an_attempt_and_says_why,
                a_crash_loses_claims_and_no_message,
                an_attempt_that_never_ends_is_lost_though_its_node_lives,
                a_clean_stop_gives_claims_back_uncounted,
                a_node_that_was_judged_gives_nothing_back_uncounted,
                every_node_is_another_one,
            }
            suspects {
                a_lost_message_is_a_suspect,
                a_suspect_brings_its_own_limit_of_attempts,
                a_suspect_is_never_claimed_among_others,
                only_due_and_pending_suspects_are_claimed,
                losses_add_up_and_being_alone_is_remembered,
                a_spared_attempt_keeps_its_number_and_costs_no_budget,
                a_failed_attempt_makes_no_suspect,
                suspects_come_oldest_due_first,
                a_suspect_head_holds_its_key,
            }
            keys {
                a_key_is_delivered_in_the_order_it_was_sent,
                a_batch_of_one_key_is_delivered_in_its_order,
                a_scheduled_head_holds_its_key_but_no_other,
                a_retrying_head_holds_its_key_but_no_other,
                a_released_head_stays_the_head,
                the_head_stands_for_its_key,
                the_next_of_a_key_goes_before_what_was_sent_after_it,
                keys_belong_to_one_endpoint_unless_global,
                a_global_key_is_ordered_over_endpoints,
                a_dead_head_holds_where_asked_and_only_its_key,
                a_held_key_goes_on_when_released,
                a_key_is_released_everywhere_when_no_endpoint_is_named,
                a_held_key_goes_on_when_its_head_is_discarded,
                a_held_key_goes_on_with_its_redriven_head,
                a_redriven_message_waits_for_another_head_that_holds,
                a_head_that_dies_again_holds_again,
                a_redriven_message_goes_before_everything_pending_of_its_key,
                a_redriven_message_waits_for_a_retry_that_runs_before_it,
                cancelling_one_behind_starts_nothing,
                cancelling_the_redriven_one_starts_nothing,
                expiring_one_behind_starts_nothing,
                dropping_an_endpoint_lets_the_keys_go_that_it_held,
                a_forced_drop_starts_nothing_beside_what_runs,
                the_scope_of_keys_stays_while_letters_may_come_back,
                what_is_redriven_one_by_one_keeps_the_original_order,
                what_is_redriven_while_an_earlier_one_runs_goes_behind_it,
                a_redriven_head_lets_those_go_that_were_redriven_before_it,
                a_bulk_redrive_keeps_the_original_order,
                expired_and_cancelled_heads_never_hold,
                one_cancelled_in_the_middle_is_skipped,
                a_rescheduled_head_holds_its_key,
                the_order_of_a_key_survives_a_crash,
            }
            unreadable {
                a_message_that_cannot_be_read_is_set_aside_and_the_others_are_claimed,
                a_key_follows_on_dead_when_its_head_cannot_be_read,
                what_cannot_be_read_is_shown_as_such,
                a_suspect_that_cannot_be_read_is_set_aside,
                a_probe_is_one_that_can_be_read,
                a_claim_ends_whatever_was_written_into_its_message_meanwhile,
                a_message_that_cannot_be_read_is_cancelled_and_its_endpoint_dropped,
                what_cannot_be_read_comes_back_from_a_redrive_only_to_be_set_aside_again,
            }
            dead_letters {
                a_redriven_message_is_the_same_one_with_a_fresh_budget,
                a_redriven_message_that_dies_again_tells_both_lives,
                redriving_twice_yields_one_message,
                a_filter_redrives_what_it_selects_and_nothing_else,
                letters_of_a_dropped_endpoint_do_not_keep_others_from_being_redriven,
                letters_of_a_dropped_endpoint_are_found_by_its_name,
                a_redriven_message_that_was_delivered_is_not_told_as_dead,
                racing_redrives_yield_one_message,
                each_selection_redrives_what_it_names,
                unkeyed_letters_are_redriven_in_original_order,
                a_discarded_letter_is_dead_for_good,
                a_redriven_letter_cannot_be_discarded,
                letters_are_found_by_every_filter,
                the_summary_counts_each_endpoint,
                a_letter_keeps_its_last_hundred_errors,
            }
            redriving {
                a_long_redrive_is_done_in_steps,
                a_long_redrive_is_logged_once,
                a_long_redrive_keeps_the_order_of_every_key,
                a_redrive_that_does_not_fit_changes_nothing,
                racing_long_redrives_yield_one_message_each,
            }
            sweeping {
                letters_are_found_by_what_went_wrong_and_when,
                a_sweep_takes_what_its_filter_selects_and_nothing_else,
                a_sweep_tells_how_far_it_is,
                a_sweep_keeps_the_order_of_every_key,
                what_dies_during_a_sweep_is_not_swept_again,
                a_sweep_discards_what_was_erased_and_lets_keys_go_on,
                racing_sweeps_yield_one_message_each,
                a_sweep_is_logged_once,
                a_sweep_that_finds_no_room_stops_between_steps,
                a_redriving_sweep_fills_what_room_there_is,
                a_key_with_more_letters_than_the_limit_says_so,
                a_sweep_has_no_pages,
            }
            replaying {
                a_replayed_message_is_a_new_one_that_knows_its_original,
                every_finished_message_can_be_replayed_and_no_other,
                a_message_is_replayed_to_another_endpoint_when_asked,
                a_replay_takes_what_its_selection_says,
                a_replay_may_go_to_another_endpoint,
                what_finishes_after_the_start_is_not_replayed,
                a_long_replay_keeps_the_order_of_what_was_sent,
                what_cannot_be_replayed_is_skipped_and_says_why,
                a_preview_shows_ten_and_changes_nothing,
                a_replay_that_makes_no_sense_is_refused,
                replays_are_listed_from_the_newest_back,
                a_letter_that_was_redriven_meanwhile_is_not_replayed,
            }
            replays_under_way {
                a_replay_says_how_far_it_is,
                a_replay_goes_on_after_a_crash_without_losing_or_doubling_any,
                a_stopped_replay_goes_on_when_resumed,
                a_replay_keeps_its_rate_in_every_second,
                a_replay_waits_for_room_and_says_so,
                a_replay_leaves_room_at_an_endpoint_with_a_limit_of_its_own,
                a_replay_waits_for_a_disabled_endpoint,
                large_messages_are_replayed_a_few_at_a_time,
                only_so_many_replays_are_unfinished,
                replays_take_turns,
                replays_that_ended_go_after_their_days,
                racing_nodes_replay_each_message_once,
            }
            retention {
                letters_go_after_their_days_and_not_before,
                an_evicted_letter_is_counted_and_logged,
                a_head_that_holds_its_key_outlives_retention,
                a_full_dlq_evicts_its_oldest_down_to_ninety_percent,
                finished_messages_go_after_their_months_and_not_before,
                what_is_not_finished_is_never_cleaned_up,
                the_event_log_goes_after_its_days,
                cleaning_up_is_done_in_bounded_steps,
                the_archive_keeps_as_much_as_it_is_told,
                the_attempt_log_keeps_as_much_as_it_is_told,
                no_attempt_is_kept_where_none_is_wanted,
                a_letter_tells_its_errors_whatever_the_attempt_log,
            }
            backpressure {
                a_full_queue_refuses_a_whole_batch,
                a_refusal_counts_nothing_of_what_it_refuses,
                a_drained_queue_accepts_again,
                an_endpoint_may_have_a_limit_of_its_own,
                retries_and_releases_are_exempt,
                a_redrive_is_not_exempt,
                a_duplicate_needs_no_room,
                zero_is_no_limit,
            }
            pubsub {
                event_types_are_kept_listed_and_dropped,
                subscriptions_are_kept_listed_and_dropped,
                subscribing_twice_is_one_subscription,
                racing_subscribers_share_one_subscription,
                a_bad_event_type_or_subscription_is_refused_by_field_and_leaves_nothing,
                what_changes_is_logged,
                an_event_is_delivered_byte_for_byte,
                an_event_that_is_no_json_is_refused,
                what_is_disabled_is_skipped_and_counted_and_what_is_gone_is_kept,
                an_event_that_nobody_wants_is_not_an_error,
                every_option_of_send_reaches_every_message,
                a_mistake_is_one_even_where_nobody_listens,
                what_one_receiver_cannot_take_refuses_the_event,
                an_event_published_twice_under_one_key_is_sent_once,
                two_templates_for_one_endpoint_share_an_idempotency_key,
                events_of_one_key_keep_their_order,
                a_batch_of_events_is_all_or_nothing,
                the_whole_fan_out_has_to_fit_into_the_queue,
                a_duplicate_needs_no_room_in_a_fan_out,
                one_event_becomes_no_more_messages_than_max_fanout,
                a_fan_out_may_be_wider_than_a_batch,
                what_was_published_survives_a_crash,
            }
            endpoints {
                an_endpoint_is_kept_as_it_was_created,
                a_bad_endpoint_is_refused_by_field_and_leaves_nothing,
                endpoints_are_listed_by_name_from_a_cursor,
                a_change_touches_only_what_it_names,
                single_keys_of_a_config_are_changed_and_taken_out,
                an_endpoint_with_messages_is_dropped_by_force_only,
                a_forced_drop_fences_what_runs,
                an_empty_endpoint_is_dropped_without_force,
                switches_are_remembered_and_logged,
                a_snapshot_is_news_only_when_something_changed,
                an_endpoint_that_did_not_change_keeps_its_typed_config,
                a_node_is_told_of_every_change,
                what_nodes_tell_of_attempts_adds_up,
            }
            circuits {
                of_two_nodes_one_moves_a_circuit,
                a_circuit_survives_a_crash_in_every_state,
                every_node_sees_a_move,
                a_person_can_reset_a_circuit,
                moves_of_a_circuit_are_logged,
            }
            settings {
                a_new_store_has_the_defaults,
                settings_change_all_or_none,
                changes_of_settings_are_logged,
                events_are_read_from_the_newest_back,
                nodes_that_come_and_go_are_logged,
                a_redrive_is_logged,
                a_pause_of_everything_is_remembered_and_logged,
            }
            stories {
                a_waiting_message_says_why,
                an_endpoint_that_cannot_deliver_is_the_reason,
                a_retry_waits_for_an_open_circuit_too,
                a_used_up_rate_limit_is_the_reason_until_there_is_room,
                a_store_without_a_node_is_the_reason,
                the_one_in_hand_is_the_reason_also_for_those_put_back_before_it,
                a_held_key_is_the_reason,
                only_a_pending_message_has_a_reason,
                a_message_is_erased_wherever_it_is,
                status_counts_each_endpoint,
                what_waits_behind_its_key_waits_and_what_is_due_later_does_not,
            }
            listing {
                every_message_is_listed_once_newest_first,
                a_listed_message_says_what_its_story_says,
                a_list_has_what_every_filter_selects,
                a_dropped_endpoint_is_listed_and_an_unknown_one_is_named,
                a_redriven_message_is_listed_where_it_is,
                a_rare_message_is_found_in_bounded_pages,
                every_state_is_found_at_once_behind_a_long_queue,
                what_was_made_long_ago_is_found_on_the_first_page,
                nodes_are_listed_newest_first_with_their_state,
            }
            tokens {
                a_token_opens_its_scope_and_nothing_else_does,
                a_token_is_listed_by_its_prefix_and_never_shown_again,
                a_revoked_token_opens_nothing,
                the_last_token_is_revoked_only_by_whoever_says_so,
                tokens_that_come_and_go_are_logged,
                a_token_has_a_name_for_people,
            }
            figures {
                the_figures_are_those_of_the_store,
                the_state_of_a_circuit_is_a_figure,
                endpoints_beyond_the_first_hundred_are_summed,
                refusals_of_a_full_queue_are_counted,
                evictions_are_counted_and_survive_a_crash,
                a_month_that_nobody_cleaned_up_is_a_lag,
            }
            event_log {
                what_people_and_receivers_do_to_an_endpoint_is_logged,
                what_is_done_to_the_whole_store_is_logged,
                keys_that_people_release_and_nodes_that_come_and_go_are_logged,
                cancelling_leaves_a_line_in_the_log,
            }
            durability {
                everything_survives_a_crash,
                a_fast_send_keeps_every_rule,
                ids_are_never_reused,
                two_stores_never_share_a_name,
                a_crash_in_the_middle_of_work_loses_nothing,
            }
            concurrency {
                of_racing_senders_exactly_one_wins,
                a_refused_send_does_not_touch_its_neighbours,
                senders_and_nodes_at_once_lose_and_double_nothing,
            }
        }
    };
}

macro_rules! promises {
    ($harness:ty; $($module:ident { $($promise:ident,)* })*) => {$(
        mod $module {
            use $crate::store::conformance::$module as promised;
            use $crate::store::world::World;
            $(
                #[tokio::test]
                async fn $promise() {
                    promised::$promise(World::<$harness>::start().await).await;
                }
            )*
        }
    )*};
}

pub(crate) use {conformance, direct_claims, promises};
