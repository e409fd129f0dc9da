"""Questions about videos: ActivityNet-QA, MSRVTT-QA, MSVD-QA.

activitynet_qa  dataset/{train,val,test}_q.json   video_name, question, question_id
                dataset/{train,val,test}_a.json   question_id, answer, type
                videos/v_<video_name>.mp4         in this folder, or in activitynet/
msrvtt_qa       {train,val,test}_qa.json          id, video_id, question, answer, category_id
                {TrainValVideo,TestVideo}/video<video_id>.mp4   in this folder, or in msrvtt/
msvd_qa         {train,val,test}_qa.json          id, video_id, question, answer
                youtube_mapping.txt               lines "<youtube>_<start>_<end> vid<video_id>"
                YouTubeClips/<youtube>_<start>_<end>.avi

Videos may be .mp4, .mkv, .webm or .avi, whatever was published. ActivityNet's files may lack the
"v_", as `video_name` does. Its question types are numbers from 0 to 8.
"""

from pathlib import Path

from pipelines.benchmarks.row import Benchmark
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import image_folder, question_item, text_under
from pipelines.sources.reading.row_files import index_rows, load_list, read_file
from pipelines.sources.reading.values import answer_of
from pipelines.sources.video.benchmark import video_benchmark, video_recipe
from pipelines.sources.video.files import SPLITS, msrvtt_folder, video_finder

ACTIVITYNET_QA = video_benchmark(
    "activitynet_qa",
    "ActivityNet-QA",
    video_recipe(1e-5, 6e-6, 1, decay=True),
    text_len=64,
    stride=70,
    num_train=43_130,
    size=8_000,
)

MSRVTT_QA = video_benchmark(
    "msrvtt_qa",
    "MSRVTT-QA",
    video_recipe(1e-5, 6e-6, 1, freeze_vision="all"),
    text_len=64,
    stride=9,
    num_train=121_646,
    size=72_821,
)

MSVD_QA = video_benchmark(
    "msvd_qa",
    "MSVD-QA",
    video_recipe(3e-6, 3e-6, 1, decay=True),
    text_len=64,
    stride=26,
    num_frames=8,  # As the config has it; PaliGemma's text has 16 frames for all videos.
    num_train=29_749,
    size=13_157,
)

_BOTH_QA = "github.com/xudejing/video-question-answering"


def _read_activitynet_questions(
    corpus: Corpus, split: str, questions: Path, answers: Path
) -> Listing:
    find = video_finder(image_folder(corpus, "videos", "activitynet"))
    # Questions and answers are two files, joined by the question's id.
    answered = index_rows(answers, load_list(corpus, answers), "question_id")

    def item_of_row(row: dict) -> Item:
        key = row["question_id"]
        if key not in answered:
            raise BadInput(f"question {key} has no answer")
        # The name in both forms: ids always have the "v_", files may lack it.
        name = text_under(row, "video_name").removeprefix("v_")
        return question_item(
            ACTIVITYNET_QA,
            split,
            corpus.media(find(f"v_{name}", name), video=True),
            key,
            text_under(row, "question"),
            [_answer_of(answered[key])],
            image=f"v_{name}",
            meta={"question_id": key, "question_type": answered[key].get("type", "")},
        )

    yield from read_file(corpus, questions, f"activitynet_qa/{split}", item_of_row)


def _read_msrvtt_questions(corpus: Corpus, split: str, file: Path) -> Listing:
    find = video_finder(msrvtt_folder(corpus, split))

    def item_of_row(row: dict) -> Item:
        video = f"video{int(row['video_id'])}"
        return _question_item(corpus, MSRVTT_QA, split, row, video, find(video))

    yield from read_file(corpus, file, f"msrvtt_qa/{split}", item_of_row)


def _read_msvd(corpus: Corpus, split: str, file: Path, mapping: Path) -> Listing:
    find = video_finder(corpus.folder / "YouTubeClips", ".avi")
    # A line is "<youtube>_<start>_<end> vid12": everything before the last space names the file.
    lines = corpus.read_text(mapping).splitlines()
    clips = {video: clip for clip, _, video in (line.strip().rpartition(" ") for line in lines)}

    def item_of_row(row: dict) -> Item:
        video = f"vid{int(row['video_id'])}"
        if not clips.get(video):
            raise BadInput(f"{video} is not in {mapping.name}")
        return _question_item(corpus, MSVD_QA, split, row, video, find(clips[video]))

    yield from read_file(corpus, file, f"msvd_qa/{split}", item_of_row)


def _question_item(
    corpus: Corpus, benchmark: Benchmark, split: str, row: dict, video: str, path: Path
) -> Item:
    """Returns the would-be record of a question, which has one answer."""
    media = corpus.media(path, video=True)
    text, answers = text_under(row, "question"), [_answer_of(row)]
    return question_item(benchmark, split, media, row["id"], text, answers, image=video)


def _answer_of(row: dict) -> str:
    """Returns the answer; a number becomes a text."""
    if not (answer := answer_of(row["answer"], "answer")):
        raise BadInput("answer must be a text, got ''")
    return answer


SOURCES = (
    published_source(
        ACTIVITYNET_QA,
        splits=SPLITS,
        files=lambda split: tuple(
            (f"dataset/{split}_{part}.json", f"{split}_{part}.json") for part in "qa"
        ),
        read=_read_activitynet_questions,
        publisher="github.com/MILVLG/activitynet-qa",
    ),
    published_source(
        MSRVTT_QA,
        splits=SPLITS,
        files=lambda split: ((f"{split}_qa.json",),),
        read=_read_msrvtt_questions,
        publisher=_BOTH_QA,
    ),
    published_source(
        MSVD_QA,
        splits=SPLITS,
        files=lambda split: ((f"{split}_qa.json",), ("youtube_mapping.txt",)),
        read=_read_msvd,
        publisher=_BOTH_QA,
    ),
)
